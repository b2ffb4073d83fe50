"""Modifiers of KV caches: a serving model keeps keys and values in fewer bits, or fewer of them."""

from typing import Any, Literal

from axcore.config import PositiveInt, config, evolve, find_config, replace_config
from axcore.errors import ConfigError
from axcore.layers import HalfStore, KeyStore, NoCache, QuantizedStore, SlidingCache
from axcore.plugins import Hardware


@config
class HalfCaches:
    """Keeps keys and values of every attention in `dtype`, whatever computes them and keeps them.

    Args:
        dtype: Of what is kept; see `HalfStore`.
    """

    dtype: Literal["float16", "bfloat16"] = "float16"

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Returns `cfg` with narrower stores where a model serves; training is as it was.

        Raises:
            ConfigError: Nothing keeps keys and values as they are.
        """
        return replace_config(cfg, KeyStore, HalfStore.Config(dtype=self.dtype))


@config
class QuantizedCaches:
    """Keeps keys and values of every attention in `dtype`, whatever cache holds them.

    Args:
        dtype: Of what is kept.
    """

    dtype: Literal["int8", "float8_e4m3fn"] = "int8"

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Returns `cfg` with other stores where a model serves; training is as it was.

        Raises:
            ConfigError: Nothing keeps keys and values as they are.
        """
        return replace_config(cfg, KeyStore, QuantizedStore.Config(dtype=self.dtype))


@config
class SlidingCaches:
    """Gives every attention whose core has a window a ring of its last tokens.

    A core's config says so by `num_visible`: how many tokens a token sees, itself counted.

    Args:
        page_size: Tokens of a page of the rings.
    """

    page_size: PositiveInt = 16

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Returns `cfg` with other caches where a model serves; training is as it was.

        Raises:
            ConfigError: No attention has a window.
        """
        if not find_config(cfg, has_window):
            raise ConfigError(
                "no attention that keeps its own keys has a window, so no ring keeps less than all",
                hint="leave sliding_cache out, or use quantized_cache",
            )
        return replace_config(cfg, has_window, self._with_ring)

    def _with_ring(self, attention: Any) -> Any:
        layout = SlidingCache.Config(window=min(_windows(attention)), page_size=self.page_size)
        return replace_config(attention, NoCache, lambda cache: evolve(cache, layout=layout))


def has_window(node: Any) -> bool:
    """Whether a config is of attention that keeps nothing of its own yet, with a window."""
    cache = getattr(node, "kv_cache", None)
    is_free = isinstance(cache, NoCache.Config) and cache.layout is None
    return is_free and bool(_windows(node))


def _windows(attention: Any) -> list[int]:
    found = find_config(attention.core, lambda node: hasattr(node, "num_visible"))
    return [one.node.num_visible for one in found if one.node.num_visible is not None]
