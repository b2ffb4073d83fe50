"""Self-attention, its core, and positions."""

from axcore.layers.attention.dot_product import DotProductAttention
from axcore.layers.attention.rope import NoPosition, RoPE, rope_frequencies, rotate
from axcore.layers.attention.self_attention import Attention

__all__ = [
    "Attention",
    "DotProductAttention",
    "NoPosition",
    "RoPE",
    "rope_frequencies",
    "rotate",
]
