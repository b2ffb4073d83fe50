"""`KVCache`: how a serving model keeps keys and values, in fewer bits or no more than a window."""

from typing import Any, Literal

from axcore.config import PositiveInt, config, evolve, find_config, replace_config
from axcore.errors import ConfigError
from axcore.layers import (
    HalfPrecisionKVStore,
    KVStore,
    NoCache,
    QuantizedKVStore,
    SlidingCache,
)
from axcore.plugins import Hardware


@config
class KVCache:
    """Choose the dtype and the layout of the KV cache of every attention, where a model serves.

    Args:
        dtype: Of keys and values: 16 bits (see `HalfPrecisionKVStore`) or 8 bits with scales (see
            `QuantizedKVStore`), whatever computes them; None keeps the dtype that they are computed
            in.
        layout: "sliding" gives every attention whose core has a window a ring of its last tokens,
            whose core's config says so by `window_size`; None is one contiguous cache a row, or
            pages where an engine has pages.
        page_size: Tokens of a page of those rings.
    """

    dtype: Literal["float16", "bfloat16", "int8", "float8_e4m3fn"] | None = None
    layout: Literal["sliding"] | None = None
    page_size: PositiveInt = 16

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return `cfg` with other caches where a model serves; training is as it was.

        Raises:
            ConfigError: Neither is chosen, no attention has a window, or no cache keeps keys and
                values in the dtype that they are computed in.
        """
        if self.dtype is None and self.layout is None:
            raise ConfigError(
                "kv_cache has neither a dtype nor a layout, so it changes nothing",
                where="KVCache",
                hint="write kv_cache(dtype=int8), or kv_cache(layout=sliding)",
            )
        if self.layout == "sliding":
            cfg = self._with_rings(cfg)
        if self.dtype is None:
            return cfg
        is_half = self.dtype in ("float16", "bfloat16")
        store: Any = HalfPrecisionKVStore if is_half else QuantizedKVStore
        return replace_config(cfg, KVStore, store.Config(dtype=self.dtype))

    def _with_rings(self, cfg: Any) -> Any:
        if not find_config(cfg, _has_window):
            raise ConfigError(
                "no attention that keeps its own keys has a window, so no ring keeps less than all",
                where="KVCache.layout",
                hint="leave layout=sliding out, or use kv_cache(dtype=int8)",
            )
        return replace_config(cfg, _has_window, self._with_ring)

    def _with_ring(self, attention: Any) -> Any:
        # Cores may be nested, and each may hide keys: the narrowest window is what is seen.
        layout = SlidingCache.Config(window=min(_windows(attention)), page_size=self.page_size)
        return replace_config(attention, NoCache, lambda cache: evolve(cache, layout=layout))


def _has_window(node: Any) -> bool:
    """Whether a config is of attention that keeps nothing of its own yet, with a window."""
    cache = getattr(node, "kv_cache", None)
    is_free = isinstance(cache, NoCache.Config) and cache.layout is None
    return is_free and bool(_windows(node))


def _windows(attention: Any) -> list[int]:
    found = find_config(attention.core, lambda node: hasattr(node, "window_size"))
    return [one.node.window_size for one in found if one.node.window_size is not None]
