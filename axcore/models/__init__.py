"""Models: causal language models, and functions that return their configs.

A family is a function from a size's name to a config, `llama2("7b")`, that edits what `transformer`
returns. Every family has a size `toy`.
"""

from axcore.models.causal_lm import (
    FORMULA,
    TOY,
    CausalLM,
    Decoder,
    Head,
    Sizes,
    TiedHead,
    UntiedHead,
    check_vocab_size,
    flops_per_token,
    of_size,
    transformer,
)
from axcore.models.llama import llama2, llama3
from axcore.models.mistral import mistral, mixtral
from axcore.models.multimodal import (
    MultimodalLM,
    language_model_of,
    multimodal,
    with_language_model,
)
from axcore.models.qwen2 import qwen2

__all__ = [
    "FORMULA",
    "TOY",
    "CausalLM",
    "Decoder",
    "Head",
    "MultimodalLM",
    "Sizes",
    "TiedHead",
    "UntiedHead",
    "check_vocab_size",
    "flops_per_token",
    "language_model_of",
    "llama2",
    "llama3",
    "mistral",
    "mixtral",
    "multimodal",
    "of_size",
    "qwen2",
    "transformer",
    "with_language_model",
]
