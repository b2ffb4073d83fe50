"""Llama 3.1 and 3.2: Llama 3 with positions stretched from 8192 tokens."""

from typing import Any

from axcore.config import replace_config, update_config
from axcore.layers import RoPE
from axcore.models import TOY, CausalLM, Sizes, TiedHead, UntiedHead, of_size, transformer
from axl_attention.llama3_rope import Llama3RoPE

_PUBLISHED = {"vocab_size": 128_256, "num_kv_heads": 8}

LLAMA31_SIZES: Sizes = {
    "8b": {"dim": 4096, "num_layers": 32, "num_heads": 32, "hidden_dim": 14_336, **_PUBLISHED},
    "70b": {"dim": 8192, "num_layers": 80, "num_heads": 64, "hidden_dim": 28_672, **_PUBLISHED},
    "405b": {
        "dim": 16_384,
        "num_layers": 126,
        "num_heads": 128,
        "hidden_dim": 53_248,
        **_PUBLISHED,
    },
    "toy": TOY,
}
LLAMA32_SIZES: Sizes = {
    "1b": {"dim": 2048, "num_layers": 16, "num_heads": 32, "hidden_dim": 8192, **_PUBLISHED},
    "3b": {"dim": 3072, "num_layers": 28, "num_heads": 24, "hidden_dim": 8192, **_PUBLISHED},
    "toy": TOY,
}


def llama31(size: str) -> CausalLM.Config:
    """Return the config of a Llama 3.1: `8b`, `70b`, `405b` or `toy`; 3.3 is its `70b`.

    Source: Grattafiori et al. 2024, arXiv:2407.21783, table 3; positions as in the configs
    published with the weights.
    """
    return _stretched(of_size("llama31", LLAMA31_SIZES, size), factor=8.0)


def llama32(size: str) -> CausalLM.Config:
    """Return the config of a Llama 3.2 for text: `1b`, `3b` or `toy`; its embedding is its head.

    Source: Meta 2024, the model card of Llama 3.2; the configs published with the weights.
    """
    cfg = _stretched(of_size("llama32", LLAMA32_SIZES, size), factor=32.0)
    return replace_config(cfg, UntiedHead, TiedHead.Config())


def _stretched(sizes: Any, *, factor: float) -> Any:
    position = Llama3RoPE.Config(theta=500_000.0, factor=factor)
    cfg = replace_config(transformer(**sizes), RoPE, lambda _: position)
    return update_config(cfg, {"**.norm.epsilon": 1e-5})
