"""Layers: the parts that models are composed of."""

from axcore.layers.adapters.batched import BatchedLoRALinear, using_adapters, with_adapter
from axcore.layers.adapters.lora import LoRALinear
from axcore.layers.adapters.states import (
    adapters_of,
    merge_adapters,
    new_adapters,
    with_adapters,
    without_lora,
)
from axcore.layers.attention.cross_attention import (
    CROSS_SOURCE,
    CachedCrossAttention,
    CrossAttention,
    CrossSource,
    CrossTransformerLayer,
    SourceKVCacheConfig,
    StoredSource,
    store_source,
)
from axcore.layers.attention.dot_product import DotProductAttention, attend, gather_keys
from axcore.layers.attention.kv_cache import (
    ContiguousCache,
    GappedCache,
    NoCache,
    PagedCache,
    SlidingCache,
)
from axcore.layers.attention.kv_store import HalfPrecisionKVStore, KVStore, QuantizedKVStore
from axcore.layers.attention.relative_bias import POSITION_BIAS, BiasedAttention, RelativeBias
from axcore.layers.attention.rope import (
    AxialRoPE,
    MultimodalRoPE,
    NoPosition,
    RoPE,
    rope_frequencies,
    rotate,
    rotate_by,
)
from axcore.layers.attention.self_attention import (
    ATTENTION_KEY,
    ATTENTION_PROJECTED,
    ATTENTION_QUERY,
    ATTENTION_VALUE,
    Attention,
)
from axcore.layers.attention.whole_inputs import (
    WholeInputAttention,
    WholeInputs,
    num_whole_tokens,
)
from axcore.layers.cache import KVCacheConfig, NoStateCache, PagedKVCacheConfig, StateCache
from axcore.layers.convolution import Convolution, PatchEmbedding
from axcore.layers.encoder import encoder_layer
from axcore.layers.grid_positions import GridPositions
from axcore.layers.learned_position import LearnedPosition
from axcore.layers.linear import Dot, Embedding, Linear, PackedLinear, PlainDot, use_decode_matmul
from axcore.layers.moe.experts import CapacityLimited, Dropless, Experts, MoE
from axcore.layers.moe.router import GroupLimit, Router, Routing
from axcore.layers.norm import (
    BatchNorm,
    Dropout,
    GroupNorm,
    LayerNorm,
    NoNorm,
    PostNorm,
    PreNorm,
    Residual,
    RMSNorm,
    StochasticDepth,
)
from axcore.layers.pipeline import Pipeline
from axcore.layers.pooling import AttentionPool, FirstToken, LastToken, MeanPool, Pool
from axcore.layers.quantization.frozen_linear import (
    FrozenLinear,
    frozen_state,
    full_precision_state,
    with_full_precision_weights,
)
from axcore.layers.quantization.quantized_dot import Fp8Current, Fp8Delayed, Int8Dynamic
from axcore.layers.quantization.stored_weights import (
    PackedQuantizedLinear,
    QuantizedLinear,
    quantize_weights,
)
from axcore.layers.scalar_head import ScalarHead
from axcore.layers.soft_tokens import (
    ENCODER_CACHE,
    FIRST_SOFT_TOKEN,
    SOFT_TOKENS,
    SoftTokenEmbedding,
    SoftTokenTable,
    num_soft_tokens_of,
)
from axcore.layers.text_embedding import TOKEN_TYPES, NormedEmbedding, TokenTypes
from axcore.layers.tokens import (
    GRID_COLUMNS,
    GRID_POSITIONS,
    TokenInfo,
    continued_rows,
    packed_rows,
    whole_rows,
)
from axcore.layers.transformer import (
    Activation,
    FeedForward,
    PlainFeedForward,
    ScannedLayers,
    Sequence,
    Stack,
    TransformerLayer,
    activation_fn,
    alternating,
)
from axcore.parallel import shard

__all__ = [
    "ATTENTION_KEY",
    "ATTENTION_PROJECTED",
    "ATTENTION_QUERY",
    "ATTENTION_VALUE",
    "CROSS_SOURCE",
    "ENCODER_CACHE",
    "FIRST_SOFT_TOKEN",
    "GRID_COLUMNS",
    "GRID_POSITIONS",
    "POSITION_BIAS",
    "SOFT_TOKENS",
    "TOKEN_TYPES",
    "Activation",
    "Attention",
    "AttentionPool",
    "AxialRoPE",
    "BatchNorm",
    "BatchedLoRALinear",
    "BiasedAttention",
    "CachedCrossAttention",
    "CapacityLimited",
    "ContiguousCache",
    "Convolution",
    "CrossAttention",
    "CrossSource",
    "CrossTransformerLayer",
    "Dot",
    "DotProductAttention",
    "Dropless",
    "Dropout",
    "Embedding",
    "Experts",
    "FeedForward",
    "FirstToken",
    "Fp8Current",
    "Fp8Delayed",
    "FrozenLinear",
    "GappedCache",
    "GridPositions",
    "GroupLimit",
    "GroupNorm",
    "HalfPrecisionKVStore",
    "Int8Dynamic",
    "KVCacheConfig",
    "KVStore",
    "LastToken",
    "LayerNorm",
    "LearnedPosition",
    "Linear",
    "LoRALinear",
    "MeanPool",
    "MoE",
    "MultimodalRoPE",
    "NoCache",
    "NoNorm",
    "NoPosition",
    "NoStateCache",
    "NormedEmbedding",
    "PackedLinear",
    "PackedQuantizedLinear",
    "PagedCache",
    "PagedKVCacheConfig",
    "PatchEmbedding",
    "Pipeline",
    "PlainDot",
    "PlainFeedForward",
    "Pool",
    "PostNorm",
    "PreNorm",
    "QuantizedKVStore",
    "QuantizedLinear",
    "RMSNorm",
    "RelativeBias",
    "Residual",
    "RoPE",
    "Router",
    "Routing",
    "ScalarHead",
    "ScannedLayers",
    "Sequence",
    "SlidingCache",
    "SoftTokenEmbedding",
    "SoftTokenTable",
    "SourceKVCacheConfig",
    "Stack",
    "StateCache",
    "StochasticDepth",
    "StoredSource",
    "TokenInfo",
    "TokenTypes",
    "TransformerLayer",
    "WholeInputAttention",
    "WholeInputs",
    "activation_fn",
    "adapters_of",
    "alternating",
    "attend",
    "continued_rows",
    "encoder_layer",
    "frozen_state",
    "full_precision_state",
    "gather_keys",
    "merge_adapters",
    "new_adapters",
    "num_soft_tokens_of",
    "num_whole_tokens",
    "packed_rows",
    "quantize_weights",
    "rope_frequencies",
    "rotate",
    "rotate_by",
    "shard",
    "store_source",
    "use_decode_matmul",
    "using_adapters",
    "whole_rows",
    "with_adapter",
    "with_adapters",
    "with_full_precision_weights",
    "without_lora",
]
