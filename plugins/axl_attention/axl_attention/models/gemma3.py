"""Gemma 3, the part for text: five local layers to one global, and normalised queries and keys."""

from typing import Any

from axcore.config import evolve, replace_config, update_config
from axcore.layers import Attention, PreNorm, RMSNorm, RoPE, Sequence, alternating
from axcore.models import TOY, CausalLM, Sizes, of_size
from axl_attention.linear_rope import LinearRoPE
from axl_attention.models.gemma import gemma_like, local
from axl_attention.query_key_norm import in_place_of as with_query_key_norm
from axl_attention.sandwich_norm import in_place_of as with_sandwich_norm

_LOCAL_LAYERS = 5
"""Of each turn; the sixth is global."""

GEMMA3_SIZES: Sizes = {
    "1b": {
        "vocab_size": 262_144,
        "dim": 1152,
        "num_layers": 26,
        "num_heads": 4,
        "num_kv_heads": 1,
        "head_dim": 256,
        "hidden_dim": 6912,
        "window": 512,
        "rope_factor": None,
    },
    "4b": {
        "vocab_size": 262_208,
        "dim": 2560,
        "num_layers": 34,
        "num_heads": 8,
        "num_kv_heads": 4,
        "head_dim": 256,
        "hidden_dim": 10_240,
        "window": 1024,
        "rope_factor": 8.0,
    },
    "12b": {
        "vocab_size": 262_208,
        "dim": 3840,
        "num_layers": 48,
        "num_heads": 16,
        "num_kv_heads": 8,
        "head_dim": 256,
        "hidden_dim": 15_360,
        "window": 1024,
        "rope_factor": 8.0,
    },
    "27b": {
        "vocab_size": 262_208,
        "dim": 5376,
        "num_layers": 62,
        "num_heads": 32,
        "num_kv_heads": 16,
        "head_dim": 128,
        "hidden_dim": 21_504,
        "scale": 168**-0.5,
        "window": 1024,
        "rope_factor": 8.0,
    },
    "toy": {**TOY, "num_layers": 8, "head_dim": 32, "window": 4, "rope_factor": 8.0},
}


def gemma3(size: str) -> CausalLM.Config:
    """Return the config of a Gemma 3: `1b`, `4b`, `12b`, `27b` or `toy`.

    Source: Gemma Team 2025, arXiv:2503.19786, section 2; sizes as in the configs published with the
    weights.
    """
    sizes = dict(of_size("gemma3", GEMMA3_SIZES, size))
    window, factor = sizes.pop("window"), sizes.pop("rope_factor")
    cfg = replace_config(gemma_like(**sizes), PreNorm, with_sandwich_norm)
    cfg = replace_config(cfg, Attention, with_query_key_norm)
    cfg = replace_config(cfg, RMSNorm, lambda norm: evolve(norm, weight_offset=1.0))
    stack = cfg.decoder.stack
    far = LinearRoPE.Config(factor=factor) if factor else RoPE.Config()
    near, wide = (
        local(stack.layer, window),
        replace_config(stack.layer, RoPE, evolve(far, theta=1_000_000.0)),
    )
    return update_config(cfg, {"decoder.stack": _in_turns(stack, near, wide)})


def _in_turns(stack: Any, near: Any, wide: Any) -> Any:
    """Return five near layers and a wide one, again and again; those left over are near."""
    num_left = stack.num_layers % (_LOCAL_LAYERS + 1)
    whole = evolve(stack, num_layers=stack.num_layers - num_left)
    turns = alternating(whole, *[near] * _LOCAL_LAYERS, wide)
    if not num_left:
        return turns
    return Sequence.Config(layers=(turns, evolve(stack, num_layers=num_left, layer=near)))
