"""Inference: text from a trained model."""

from axcore.errors import EngineError, RequestError
from axcore.inference.answer import Answer
from axcore.inference.config import EngineConfig
from axcore.inference.engine import Engine
from axcore.inference.engine_stats import EngineStats
from axcore.inference.generate import Generation, Generator
from axcore.inference.open_engine import AnyEngine, open_engine
from axcore.inference.replicas import Replicas
from axcore.inference.request import (
    Completion,
    Draining,
    DrawnToken,
    Piece,
    QueueFull,
    Request,
)
from axcore.inference.sampling import Sampling
from axcore.inference.serving_mesh import serving_mesh
from axcore.inference.speculation import Draft, DraftModel, NGramLookup

__all__ = [
    "Answer",
    "AnyEngine",
    "Completion",
    "Draft",
    "DraftModel",
    "Draining",
    "DrawnToken",
    "Engine",
    "EngineConfig",
    "EngineError",
    "EngineStats",
    "Generation",
    "Generator",
    "NGramLookup",
    "Piece",
    "QueueFull",
    "Replicas",
    "Request",
    "RequestError",
    "Sampling",
    "open_engine",
    "serving_mesh",
]
