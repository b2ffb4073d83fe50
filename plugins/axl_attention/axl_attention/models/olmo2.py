"""OLMo 2: norms behind the branches, and queries and keys normalised over all heads."""

from typing import Any

from axcore.config import replace_config, update_config
from axcore.layers import Attention, PreNorm
from axcore.models import TOY, CausalLM, Sizes, of_size, transformer
from axl_attention.normed_linear import in_place_of as with_normed_linear
from axl_attention.reordered_norm import in_place_of as with_reordered_norm

_VOCABULARY = {"vocab_size": 100_352}

OLMO2_SIZES: Sizes = {
    "1b": {"dim": 2048, "num_layers": 16, "num_heads": 16, "hidden_dim": 8192, **_VOCABULARY},
    "7b": {"dim": 4096, "num_layers": 32, "num_heads": 32, "hidden_dim": 11_008, **_VOCABULARY},
    "13b": {"dim": 5120, "num_layers": 40, "num_heads": 40, "hidden_dim": 13_824, **_VOCABULARY},
    "32b": {
        "dim": 5120,
        "num_layers": 64,
        "num_heads": 40,
        "num_kv_heads": 8,
        "hidden_dim": 27_648,
        **_VOCABULARY,
    },
    "toy": TOY,
}


def olmo2(size: str) -> CausalLM.Config:
    """Return the config of an OLMo 2: `1b`, `7b`, `13b`, `32b` or `toy`.

    Source: OLMo Team 2025, arXiv:2501.00656, sections 2 and 3; sizes as in the configs published
    with the weights.
    """
    cfg = with_reordered_norms(transformer(**of_size("olmo2", OLMO2_SIZES, size)))
    return update_config(cfg, {"**.position.theta": 500_000.0})


def with_reordered_norms(cfg: Any) -> Any:
    """Return a transformer with the norms of OLMo 2 and 3."""
    cfg = replace_config(cfg, Attention, with_normed_linear)
    return replace_config(cfg, PreNorm, with_reordered_norm)
