"""Kinds of caches that a model can have where it serves, and the families that can have each."""

import functools
from collections.abc import Callable
from typing import Any

import attrs
from axl_attention.across_layers import ReceivedCache
from axl_attention.latent_attention import LatentAttention
from axl_attention.norms import HeadLayerNorm
from axl_attention.rope_scaling import LongRoPE
from cache_law import CACHE_CONFIG, MORE_ROWS, PAGED
from parity_pairs import MODELS

from axcore.config import REQUIRED, PositiveInt, config, find_config, map_config, replace_config
from axcore.errors import ConfigError
from axcore.layers import KVCacheConfig, NoCache, NoStateCache
from axcore.modifiers import KVCache, with_variant
from axcore.module import Module
from axcore.ops import Quantization
from axcore.ops.quantized.quantize import quantized
from axcore.plugins import Hardware

CPU = Hardware.parse("cpu-1")


def rings(cfg: Any) -> Any:
    """Rings of pages of 2 tokens, round which texts go twice."""
    return KVCache(layout="sliding", page_size=2).apply(cfg, CPU)


def half(cfg: Any) -> Any:
    return KVCache(dtype="float16").apply(cfg, CPU)


def int8(cfg: Any) -> Any:
    return KVCache(dtype="int8").apply(cfg, CPU)


def float8(cfg: Any) -> Any:
    return KVCache(dtype="float8_e4m3fn").apply(cfg, CPU)


def shared_keys(cfg: Any) -> Any:
    """Every second layer with the keys and the cache of the one before."""
    return with_variant(cfg, "shared_keys")


def latents(cfg: Any) -> Any:
    """Latent attention: a family's own, or instead of attention of another kind.

    Its heads have another size, so factors that were found for each pair of theirs fit none.
    """
    if find_config(cfg, LatentAttention):
        return cfg
    if find_config(cfg, LongRoPE):
        raise ConfigError("factors of LongRoPE are those of heads of one size")
    if find_config(cfg, HeadLayerNorm):
        raise ConfigError("norms of heads are those of heads of one size")
    return with_variant(cfg, "latent_attention")


def states(cfg: Any) -> Any:
    """A family's own state; one without it is refused."""
    if not find_config(cfg, NoStateCache):
        raise ConfigError("no layer carries a state from token to token")
    return cfg


@attrs.frozen
class CacheKind:
    """What is done to a model's config, and what it serves in.

    Args:
        changes: Functions of a config, each refusing those that they do not fit.
        cache_config: What the model serves in.
        rounding: Dtype that keys and values are rounded to; None where they are not.
    """

    changes: tuple[Callable[[Any], Any], ...] = ()
    cache_config: KVCacheConfig = PAGED
    rounding: str | None = None

    def of(self, family: str) -> Any:
        """Returns the config of a family with caches of this kind."""
        return functools.reduce(lambda cfg, change: change(cfg), self.changes, _model(family))

    def families(self) -> tuple[str, ...]:
        """Returns the families that can have it."""
        return tuple(one for one in MODELS if all(_fits(change, one) for change in self.changes))


FLOAT8 = "float8_e4m3fn"

KINDS = {
    "rows": CacheKind(cache_config=CACHE_CONFIG),
    "slots": CacheKind(cache_config=MORE_ROWS),
    "pages": CacheKind(),
    "rings": CacheKind((rings,)),
    "half": CacheKind((half,), rounding="float16"),
    "int8": CacheKind((int8,), rounding="int8"),
    "int8-rows": CacheKind((int8,), CACHE_CONFIG, "int8"),
    "float8": CacheKind((float8,), MORE_ROWS, FLOAT8),
    "latents": CacheKind((latents,)),
    "latents-half-rows": CacheKind((latents, half), CACHE_CONFIG, "float16"),
    "shared": CacheKind((shared_keys,)),
    "state": CacheKind((states,), MORE_ROWS),
    "rings-int8": CacheKind((rings, int8), rounding="int8"),
    "latents-int8": CacheKind((latents, int8), rounding="int8"),
    "latents-float8-rows": CacheKind((latents, float8), CACHE_CONFIG, FLOAT8),
    "shared-rings": CacheKind((rings, shared_keys)),
    "shared-int8": CacheKind((shared_keys, int8), rounding="int8"),
    "shared-rings-int8": CacheKind((rings, int8, shared_keys), MORE_ROWS, "int8"),
    "state-int8": CacheKind((states, int8), rounding="int8"),
}
"""Kinds of caches, and those that come together, by name."""


@functools.cache
def _model(family: str) -> Any:
    return MODELS[family]()


@functools.cache
def _fits(change: Callable[[Any], Any], family: str) -> bool:
    try:
        change(_model(family))
    except ConfigError:
        return False
    return True


class RoundedKeys(Module):
    """Rounds keys and values as a cache of 8 or 16 bits does, and keeps nothing.

    Slot protocol: the parent fills `num_kv_heads`, `head_dim` and `value_dim`.
    """

    @config
    class Config(Module.Config["RoundedKeys"]):
        num_kv_heads: PositiveInt = REQUIRED
        head_dim: PositiveInt = REQUIRED
        value_dim: PositiveInt | None = REQUIRED
        channel: str = ""
        format: str = "int8"

    def forward(self, k: Any, v: Any, info: Any) -> tuple[Any, Any, Any]:
        return self._rounded(k), self._rounded(v), info

    def _rounded(self, x: Any) -> Any:
        if self.config.format == "float16":
            return x.astype(self.config.format).astype(x.dtype)
        narrow = quantized(x, Quantization(format=self.config.format, per="channel"), (-1,))
        return (narrow.values.astype(narrow.scale.dtype) * narrow.scale).astype(x.dtype)


def with_rounded_keys(cfg: Any, dtype: str) -> Any:
    """Returns the config of a model whose plain forward pass rounds what such caches keep."""
    rounded = RoundedKeys.Config(format=dtype)
    cfg = replace_config(cfg, ReceivedCache, rounded, missing_ok=True)
    cfg = replace_config(cfg, NoCache, rounded)
    return map_config(
        cfg, lambda node: node.for_serving(CACHE_CONFIG) if _is_latent(node) else node
    )


def _is_latent(node: Any) -> bool:
    return isinstance(node, LatentAttention.Config)
