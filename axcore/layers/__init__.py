"""Layers: the parts that models are composed of."""

from axcore.layers.activations import Activation, activation_fn
from axcore.layers.attention.attend import attend
from axcore.layers.attention.contiguous_cache import ContiguousCache
from axcore.layers.attention.gapped_cache import GappedCache
from axcore.layers.attention.half_store import HalfStore
from axcore.layers.attention.key_store import KeyStore
from axcore.layers.attention.kv_cache import NoCache
from axcore.layers.attention.paged_cache import PagedCache
from axcore.layers.attention.position import NoPosition
from axcore.layers.attention.quantized_store import QuantizedStore
from axcore.layers.attention.rope import RoPE, rope_frequencies, rotate
from axcore.layers.attention.self_attention import Attention, DotProductAttention
from axcore.layers.attention.sliding_cache import SlidingCache
from axcore.layers.dot import Dot, PlainDot
from axcore.layers.dropout import Dropout
from axcore.layers.embedding import Embedding
from axcore.layers.feed_forward import FeedForward, PlainFeedForward
from axcore.layers.linear import Linear
from axcore.layers.lora.adapters import (
    adapters_of,
    merge_adapters,
    new_adapters,
    with_adapters,
    without_lora,
)
from axcore.layers.lora.batched import BatchedLoRALinear, using_adapters, with_adapter
from axcore.layers.lora.linear import LoRALinear
from axcore.layers.moe.capacity import CapacityLimited
from axcore.layers.moe.dropless import Dropless
from axcore.layers.moe.experts import Experts
from axcore.layers.moe.layer import MoE
from axcore.layers.moe.router import Router
from axcore.layers.moe.routing import GroupLimit, Routing
from axcore.layers.norm import LayerNorm, RMSNorm
from axcore.layers.panel_linear import PanelLinear
from axcore.layers.pipeline import Pipeline
from axcore.layers.quantization.current_scaling import Fp8Current, Int8Dynamic
from axcore.layers.quantization.delayed_scaling import Fp8Delayed
from axcore.layers.quantization.frozen_linear import (
    FrozenLinear,
    frozen_state,
    widened,
    widened_state,
)
from axcore.layers.quantization.stored_weights import QuantizedLinear, quantize_weights
from axcore.layers.remat_presets import (
    ATTENTION_KEY,
    ATTENTION_PROJECTED,
    ATTENTION_QUERY,
    ATTENTION_VALUE,
)
from axcore.layers.residual import PostNorm, PreNorm, Residual
from axcore.layers.sequence import Sequence, alternating
from axcore.layers.serving_products import products_by_op
from axcore.layers.serving_room import KVCacheConfig, PagedKVCacheConfig
from axcore.layers.stack import ScannedLayers, Stack
from axcore.layers.state_cache import NoStateCache, StateCache
from axcore.layers.tokens import TokenInfo, continued_rows, packed_rows, whole_rows
from axcore.layers.transformer import TransformerLayer
from axcore.parallel import shard

__all__ = [
    "ATTENTION_KEY",
    "ATTENTION_PROJECTED",
    "ATTENTION_QUERY",
    "ATTENTION_VALUE",
    "Activation",
    "Attention",
    "BatchedLoRALinear",
    "CapacityLimited",
    "ContiguousCache",
    "Dot",
    "DotProductAttention",
    "Dropless",
    "Dropout",
    "Embedding",
    "Experts",
    "FeedForward",
    "Fp8Current",
    "Fp8Delayed",
    "FrozenLinear",
    "GappedCache",
    "GroupLimit",
    "HalfStore",
    "Int8Dynamic",
    "KVCacheConfig",
    "KeyStore",
    "LayerNorm",
    "Linear",
    "LoRALinear",
    "MoE",
    "NoCache",
    "NoPosition",
    "NoStateCache",
    "PagedCache",
    "PagedKVCacheConfig",
    "PanelLinear",
    "Pipeline",
    "PlainDot",
    "PlainFeedForward",
    "PostNorm",
    "PreNorm",
    "QuantizedLinear",
    "QuantizedStore",
    "RMSNorm",
    "Residual",
    "RoPE",
    "Router",
    "Routing",
    "ScannedLayers",
    "Sequence",
    "SlidingCache",
    "Stack",
    "StateCache",
    "TokenInfo",
    "TransformerLayer",
    "activation_fn",
    "adapters_of",
    "alternating",
    "attend",
    "continued_rows",
    "frozen_state",
    "merge_adapters",
    "new_adapters",
    "packed_rows",
    "products_by_op",
    "quantize_weights",
    "rope_frequencies",
    "rotate",
    "shard",
    "using_adapters",
    "whole_rows",
    "widened",
    "widened_state",
    "with_adapter",
    "with_adapters",
    "without_lora",
]
