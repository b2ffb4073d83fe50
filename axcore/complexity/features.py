"""The features of the core that the meter measures: how each is added to any training config.

Each function is all that somebody writes to have the feature in their models; its lines are what
is counted.
"""

from typing import Any

from axcore.complexity.evidence import multiplies, runs, serves
from axcore.complexity.trace import Trace, modules_of
from axcore.config import evolve, replace_config
from axcore.layers import (
    DotProductAttention,
    FeedForward,
    FrozenLinear,
    HalfPrecisionKVStore,
    LoRALinear,
    MoE,
    PlainFeedForward,
    QuantizedKVStore,
    RoPE,
    SlidingCache,
)
from axcore.layers.adapters import Magnitude
from axcore.models.multi_token_lm import MultiTokenBlock
from axcore.modifiers import (
    Int8Training,
    KVCache,
    LoRA,
    MultiTokenPrediction,
    QuantizedBase,
)
from axcore.module import Module
from axcore.plugins import Hardware


def with_rope(cfg: Any) -> Any:
    """Rotary positions in every attention layer."""
    return replace_config(cfg, Module, RoPE.Config(), at="**.position")


def with_moe(cfg: Any) -> Any:
    """Experts in the place of every feed-forward layer, gated or plain."""
    return replace_config(
        cfg,
        lambda node: isinstance(node, (FeedForward.Config, PlainFeedForward.Config)),
        lambda expert: MoE.Config(expert=expert, num_experts=4, top_k=2),
    )


def with_int8(cfg: Any) -> Any:
    """Products of linear layers in int8."""
    return Int8Training().apply(cfg, Hardware.parse("cpu-1"))


def with_lora(cfg: Any) -> Any:
    """Adapters of rank 4 on every linear layer, and all else frozen."""
    return LoRA(rank=4).apply(cfg, Hardware.parse("cpu-1"))


def with_rslora(cfg: Any) -> Any:
    """Adapters whose scale does not shrink with their rank, and all else frozen."""
    return LoRA(rank=4, use_rslora=True).apply(cfg, Hardware.parse("cpu-1"))


def with_dora(cfg: Any) -> Any:
    """Adapters that train lengths and directions apart, and all else frozen."""
    return LoRA(rank=4, use_dora=True).apply(cfg, Hardware.parse("cpu-1"))


def with_qlora(cfg: Any) -> Any:
    """Adapters of rank 4 on weights in NF4, and all frozen but them."""
    cpu = Hardware.parse("cpu-1")
    return QuantizedBase().apply(LoRA(rank=4).apply(cfg, cpu), cpu)


def with_multi_token_prediction(cfg: Any) -> Any:
    """The token after the next one predicted as well, by one layer more."""
    return MultiTokenPrediction().apply(cfg, Hardware.parse("cpu-1"))


def with_sliding_cache(cfg: Any) -> Any:
    """The last eight tokens seen, and kept where the model serves."""
    cfg = replace_config(cfg, DotProductAttention, lambda old: evolve(old, window=(7, None)))
    return KVCache(layout="sliding").apply(cfg, Hardware.parse("cpu-1"))


def with_half_cache(cfg: Any) -> Any:
    """Keys and values kept in float16 where the model serves."""
    return KVCache(dtype="float16").apply(cfg, Hardware.parse("cpu-1"))


def with_quantized_cache(cfg: Any) -> Any:
    """Keys and values kept in int8 where the model serves."""
    return KVCache(dtype="int8").apply(cfg, Hardware.parse("cpu-1"))


has_rope = runs(RoPE)
has_moe = runs(MoE)
has_lora = runs(LoRALinear)
has_dora = runs(Magnitude)
has_qlora = runs(FrozenLinear)
has_int8 = multiplies("int8")
has_multi_token_prediction = runs(MultiTokenBlock)


def has_rslora(trace: Trace) -> str | None:
    """Return None where every correction has the scale of rank-stabilised LoRA."""
    found = [one for _, one in modules_of(trace.model) if isinstance(one, LoRALinear)]
    other = [one for one in found if one.scale != one.config.alpha / one.config.rank**0.5]
    return f"{len(other)} corrections have another scale" if other else has_lora(trace)


has_sliding_cache = serves(SlidingCache)
has_half_cache = serves(HalfPrecisionKVStore)
has_quantized_cache = serves(QuantizedKVStore)
