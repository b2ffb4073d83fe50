"""Gemma 2: local and global attention by turns, and soft caps on every logit."""

from axcore.config import replace_config, update_config
from axcore.layers import PreNorm, alternating
from axcore.models import TOY, CausalLM, Sizes, of_size
from axl_attention.models.gemma import gemma_like, local
from axl_attention.sandwich_norm import in_place_of as with_sandwich_norm

_PUBLISHED = {"vocab_size": 256_000, "window": 4096}

GEMMA2_SIZES: Sizes = {
    "2b": {
        "dim": 2304,
        "num_layers": 26,
        "num_heads": 8,
        "num_kv_heads": 4,
        "head_dim": 256,
        "hidden_dim": 9216,
        **_PUBLISHED,
    },
    "9b": {
        "dim": 3584,
        "num_layers": 42,
        "num_heads": 16,
        "num_kv_heads": 8,
        "head_dim": 256,
        "hidden_dim": 14_336,
        **_PUBLISHED,
    },
    "27b": {
        "dim": 4608,
        "num_layers": 46,
        "num_heads": 32,
        "num_kv_heads": 16,
        "head_dim": 128,
        "hidden_dim": 36_864,
        "scale": 144**-0.5,
        **_PUBLISHED,
    },
    "toy": {**TOY, "head_dim": 32, "window": 4},
}


def gemma2(size: str) -> CausalLM.Config:
    """Return the config of a Gemma 2: `2b`, `9b`, `27b` or `toy`.

    Source: Gemma Team 2024, arXiv:2408.00118, section 2 and table 1.
    """
    sizes = dict(of_size("gemma2", GEMMA2_SIZES, size))
    window = sizes.pop("window")
    cfg = replace_config(gemma_like(**sizes), PreNorm, with_sandwich_norm)
    cfg = update_config(cfg, {"**.core.soft_cap": 50.0, "head.soft_cap": 30.0})
    stack = cfg.decoder.stack
    turns = alternating(stack, local(stack.layer, window), stack.layer)
    return update_config(cfg, {"decoder.stack": turns})
