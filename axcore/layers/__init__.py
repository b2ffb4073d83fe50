"""Layers: the parts that models are put together from."""

from axcore.layers.activations import Activation, activation_fn
from axcore.layers.attention import Attention, DotProductAttention
from axcore.layers.capacity import CapacityLimited
from axcore.layers.dot import Dot, PlainDot
from axcore.layers.dropless import Dropless
from axcore.layers.dropout import Dropout
from axcore.layers.embedding import Embedding
from axcore.layers.experts import Experts
from axcore.layers.feed_forward import FeedForward, PlainFeedForward
from axcore.layers.linear import Linear
from axcore.layers.lora import LoRALinear
from axcore.layers.lora_state import (
    adapters_of,
    merge_adapters,
    new_adapters,
    with_adapters,
    without_lora,
)
from axcore.layers.moe import MoE
from axcore.layers.norm import LayerNorm, RMSNorm
from axcore.layers.pipeline import Pipeline
from axcore.layers.position import NoPosition
from axcore.layers.quantized import Fp8Current, Int8Dynamic
from axcore.layers.quantized_delayed import Fp8Delayed
from axcore.layers.quantized_training import Fp8Training, Int8Training, with_dot
from axcore.layers.remat import (
    ATTENTION_KEY,
    ATTENTION_PROJECTED,
    ATTENTION_QUERY,
    ATTENTION_VALUE,
)
from axcore.layers.repeat import Repeat, Stack
from axcore.layers.residual import PostNorm, PreNorm, Residual
from axcore.layers.rope import RoPE, rope_frequencies, rotate
from axcore.layers.router import Router
from axcore.layers.routing import GroupLimit, Routing
from axcore.layers.sequence import Sequence, alternating
from axcore.layers.tokens import TokenInfo
from axcore.layers.transformer import TransformerLayer

__all__ = [
    "ATTENTION_KEY",
    "ATTENTION_PROJECTED",
    "ATTENTION_QUERY",
    "ATTENTION_VALUE",
    "Activation",
    "Attention",
    "CapacityLimited",
    "Dot",
    "DotProductAttention",
    "Dropless",
    "Dropout",
    "Embedding",
    "Experts",
    "FeedForward",
    "Fp8Current",
    "Fp8Delayed",
    "Fp8Training",
    "GroupLimit",
    "Int8Dynamic",
    "Int8Training",
    "LayerNorm",
    "Linear",
    "LoRALinear",
    "MoE",
    "NoPosition",
    "Pipeline",
    "PlainDot",
    "PlainFeedForward",
    "PostNorm",
    "PreNorm",
    "RMSNorm",
    "Repeat",
    "Residual",
    "RoPE",
    "Router",
    "Routing",
    "Sequence",
    "Stack",
    "TokenInfo",
    "TransformerLayer",
    "activation_fn",
    "adapters_of",
    "alternating",
    "merge_adapters",
    "new_adapters",
    "rope_frequencies",
    "rotate",
    "with_adapters",
    "with_dot",
    "without_lora",
]
