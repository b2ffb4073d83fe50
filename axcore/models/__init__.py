"""Models: causal language models, and functions that return their configs."""

from axcore.models.causal_lm import CausalLM
from axcore.models.decoder import Decoder
from axcore.models.head import Head, TiedHead, UntiedHead
from axcore.models.llama import llama2, llama3
from axcore.models.transformer import transformer

__all__ = [
    "CausalLM",
    "Decoder",
    "Head",
    "TiedHead",
    "UntiedHead",
    "llama2",
    "llama3",
    "transformer",
]
