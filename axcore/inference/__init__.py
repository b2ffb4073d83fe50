"""Inference: text from a trained model."""

from axcore.errors import EngineError, RequestError
from axcore.inference.beam_search import Beam, beam_search
from axcore.inference.chat_session import ChatSession
from axcore.inference.completion import Completion, CompletionDelta, CompletionStream, SampledToken
from axcore.inference.config import EngineConfig
from axcore.inference.engine import Engine
from axcore.inference.engine_stats import EngineStats
from axcore.inference.generate import Generation, Generator
from axcore.inference.kv_cache import serving_mesh
from axcore.inference.replicas import AnyEngine, Replicas, open_engine
from axcore.inference.request import Draining, EncoderInput, QueueFull, Request, Sampling
from axcore.inference.sample_many import sample_many, sample_seed
from axcore.inference.seq2seq import Seq2SeqGenerator
from axcore.inference.speculation import Draft, DraftModel, NGramLookup

__all__ = [
    "AnyEngine",
    "Beam",
    "ChatSession",
    "Completion",
    "CompletionDelta",
    "CompletionStream",
    "Draft",
    "DraftModel",
    "Draining",
    "EncoderInput",
    "Engine",
    "EngineConfig",
    "EngineError",
    "EngineStats",
    "Generation",
    "Generator",
    "NGramLookup",
    "QueueFull",
    "Replicas",
    "Request",
    "RequestError",
    "SampledToken",
    "Sampling",
    "Seq2SeqGenerator",
    "beam_search",
    "open_engine",
    "sample_many",
    "sample_seed",
    "serving_mesh",
]
