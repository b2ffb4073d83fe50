"""What axl-attention adds to any model, for `axcore loc` to measure.

Each function is all that somebody writes to have the feature in their models.
"""

from typing import Any

from axcore.complexity import Trace, runs, serves
from axcore.config import find_config, replace_config
from axcore.layers import KVCacheConfig, NoCache, ScannedLayers, Stack, StateCache
from axcore.modifiers import with_variant
from axcore.module import Module
from axl_attention.across_layers import (
    ReceivedCache,
    SentCache,
    ValueResidual,
    with_shared_keys,
)
from axl_attention.across_layers import with_value_residual as mixing_values
from axl_attention.attention_cores import AttentionSinks, SlidingWindowAttention
from axl_attention.latent_attention import LatentAttention
from axl_attention.mamba2 import Mamba2
from axl_attention.norms import QueryKeyNorm
from axl_attention.rope_scaling import YaRN


def with_yarn(cfg: Any) -> Any:
    """Rotary positions, stretched to four times the length, in every attention layer."""
    return replace_config(cfg, Module, YaRN.Config(theta=10_000.0), at="**.position")


def with_latent_attention(cfg: Any) -> Any:
    """Keys and values of every layer made from one short vector a token."""
    return with_variant(cfg, "latent_attention")


def with_latent_cache(cfg: Any) -> Any:
    """Nothing but that vector kept of a token where the model serves."""
    return with_variant(cfg, "latent_attention")


def with_shared_cache(cfg: Any) -> Any:
    """Keys of every second layer those of the one before, and kept once where the model serves."""
    return replace_config(
        cfg,
        lambda node: isinstance(node, (ScannedLayers.Config, Stack.Config)),
        with_shared_keys,
    )


def with_state_cache(cfg: Any) -> Any:
    """A recurrence instead of attention, whose state is kept where the model serves."""
    state = Mamba2.Config(num_heads=2, head_dim=16, state_dim=8)
    return replace_config(cfg, lambda node: hasattr(node, "kv_cache"), state)


def with_sliding_window(cfg: Any) -> Any:
    """Each token sees the eight before it."""
    return with_variant(cfg, "sliding_window", window=8)


def with_sinks(cfg: Any) -> Any:
    """A learned sink for every head."""
    return with_variant(cfg, "sinks")


def with_query_key_norm(cfg: Any) -> Any:
    """Queries and keys of every layer normalised."""
    return replace_config(cfg, Module, lambda old: QueryKeyNorm.Config(inner=old), at="**.position")


def with_value_residual(cfg: Any) -> Any:
    """Values of every layer mixed with those of the first."""
    return replace_config(cfg, lambda node: hasattr(node, "value_linear"), mixing_values)


def has_latent_cache(trace: Trace) -> str | None:
    """Proof that latent attention serves, and keeps nothing but latents."""
    cache_size = KVCacheConfig(num_rows=1, capacity=1, max_length=1)
    found = find_config(trace.model.config, LatentAttention)
    full = [one.path for one in found if not one.node.for_serving(cache_size).keeps_latents]
    return f"{full[0]} keeps keys in full" if full else serves(LatentAttention)(trace)


def has_shared_cache(trace: Trace) -> str | None:
    """Proof that layers send what they keep, and that the others keep nothing."""
    caches = (NoCache, SentCache, ReceivedCache)
    num_own, num_sent, num_received = (len(find_config(trace.model.config, one)) for one in caches)
    if not num_own == num_sent == num_received:
        return f"{num_own} layers keep keys, {num_sent} send them, and {num_received} receive them"
    return serves(SentCache)(trace)


has_state_cache = serves(StateCache)
has_yarn = runs(YaRN)
has_latent_attention = runs(LatentAttention)
has_sliding_window = runs(SlidingWindowAttention)
has_sinks = runs(AttentionSinks)
has_query_key_norm = runs(QueryKeyNorm)
has_value_residual = runs(ValueResidual)
