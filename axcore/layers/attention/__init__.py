"""Self-attention, its core, and positions."""

from axcore.layers.attention.position import NoPosition
from axcore.layers.attention.rope import RoPE, rope_frequencies, rotate
from axcore.layers.attention.self_attention import Attention, DotProductAttention

__all__ = [
    "Attention",
    "DotProductAttention",
    "NoPosition",
    "RoPE",
    "rope_frequencies",
    "rotate",
]
