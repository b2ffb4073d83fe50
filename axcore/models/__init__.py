"""Models: causal language models, and functions that return their configs.

A family is a function from a size's name to a config, `llama2("7b")`, that edits what `transformer`
returns. Every family has a size `toy`.
"""

from axcore.models.causal_lm import CausalLM
from axcore.models.decoder import Decoder
from axcore.models.flops import FORMULA, flops_per_token
from axcore.models.head import Head, TiedHead, UntiedHead
from axcore.models.llama import llama2, llama3
from axcore.models.mistral import mistral
from axcore.models.mixtral import mixtral
from axcore.models.qwen2 import qwen2
from axcore.models.sizes import TOY, Sizes, of_size
from axcore.models.transformer import transformer

__all__ = [
    "FORMULA",
    "TOY",
    "CausalLM",
    "Decoder",
    "Head",
    "Sizes",
    "TiedHead",
    "UntiedHead",
    "flops_per_token",
    "llama2",
    "llama3",
    "mistral",
    "mixtral",
    "of_size",
    "qwen2",
    "transformer",
]
