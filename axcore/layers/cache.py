"""The size of caches, and the cache of the state that a recurrent layer carries along.

A config with a method `for_serving(cache_size)` is replaced there by what the method returns. A
recurrent layer has a slot `state_cache`: it asks for the state before a call's tokens, and gives
back the state after them.
"""

from typing import Any

import attrs
import jax.numpy as jnp
from jaxtyping import Array

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ModuleError
from axcore.layers.tokens import TokenInfo
from axcore.module import Module, Param, entry


@attrs.frozen(kw_only=True)
class PagedKVCacheConfig:
    """A KV cache in pages (vLLM's blocks): each row takes as many as its tokens need.

    Args:
        num_pages: Pages of each layer's cache.
        page_size: Tokens of a page.
    """

    num_pages: int
    page_size: int


@attrs.frozen(kw_only=True)
class KVCacheConfig:
    """The size of a KV cache.

    Args:
        num_rows: Rows that are served at once.
        capacity: Tokens of a row in caches, including its padding in a call.
        max_length: Tokens of the longest text.
        pages: The pages of keys and values; None for one contiguous cache for each row.
        call_tokens: Tokens of a row that one call has at most.
    """

    num_rows: int
    capacity: int
    max_length: int
    pages: PagedKVCacheConfig | None = None
    call_tokens: int = 512

    @property
    def num_keys(self) -> int:
        """The most keys of a row that a call reads, with those of its last page."""
        if self.pages is None:
            return self.capacity
        return -(-self.max_length // self.pages.page_size) * self.pages.page_size


class NoStateCache(Module):
    """Begin every call from zeros, and keep nothing. What a model is trained with.

    Slot protocol: the parent fills `shape`, of one row.
    """

    @config
    class Config(Module.Config["NoStateCache"]):
        """The config of a `NoStateCache`."""

        shape: tuple[int, ...] = REQUIRED

        def for_serving(self, cache_size: KVCacheConfig) -> "StateCache.Config":
            """Return the cache of a model that serves."""
            return StateCache.Config(
                shape=self.shape, num_rows=cache_size.num_rows, dtypes=self.dtypes
            )

    @entry
    def before(self, info: TokenInfo, dtype: Any) -> Array:
        """Return zeros, `[batch, *shape]`.

        Raises:
            ModuleError: The call continues earlier tokens, of which nothing was kept.
        """
        if info.num_cached is not None:
            raise ModuleError(
                "the tokens of this call follow others, and this layer keeps no state",
                hint="build the model from for_serving(cfg, cache_size)",
            )
        return jnp.zeros((info.positions.shape[0], *self.config.shape), dtype)

    @entry
    def after(self, state: Array, info: TokenInfo) -> None:
        """Keep nothing."""


class StateCache(Module):
    """Keep a state for each row.

    Slot protocol: the parent fills `shape`, of one row.
    """

    @config
    class Config(Module.Config["StateCache"]):
        """The config of a `StateCache`.

        Args:
            shape: Of a row's state.
            num_rows: Rows of the cache.
        """

        shape: tuple[int, ...] = REQUIRED
        num_rows: PositiveInt = REQUIRED

    def setup(self, cfg: Config) -> None:
        """Declare the states, in float32 whatever computes: errors would add up over a text."""
        self.state = Param(
            (cfg.num_rows, *cfg.shape),
            axes=("batch", *(None for _ in cfg.shape)),
            init=0.0,
            is_buffer=True,
            dtype="float32",
        )

    @entry
    def before(self, info: TokenInfo, dtype: Any) -> Array:
        """Return the state of each row, zeros of one that begins: `[batch, *shape]`.

        Raises:
            ModuleError: The call does not say how many tokens each row has.
        """
        if info.num_cached is None:
            raise ModuleError(
                "a layer that keeps state is called without TokenInfo.num_cached",
                hint="pass continued_rows(tokens, num_cached, num_new)",
            )
        state = self.state
        if info.slots is not None:
            state = jnp.take(state, info.slots, axis=0, mode="clip")
        # `where` and not a product: what an earlier text left in this slot may be NaN.
        begins = (info.num_cached == 0).reshape(-1, *(1 for _ in self.config.shape))
        return jnp.where(begins, 0, state).astype(dtype)

    @entry
    def after(self, state: Array, info: TokenInfo) -> None:
        """Keep the state of each row for the next call."""
        state = state.astype(self.state.dtype)
        if info.slots is not None:
            # Rows of padding have a slot out of range, and write nothing.
            at = self.state.at[info.slots]
            state = at.set(state, mode="drop", wrap_negative_indices=False)
        self.update("state", state)
