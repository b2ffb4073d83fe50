"""`ContiguousCache`: room for the tokens of each row, one after the other.

Letters of shapes: R rows that there is room for, S tokens of each, K key heads.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from axcore.config import REQUIRED, PositiveInt, config, evolve
from axcore.layers.attention.cache_parts import built_store, check_continued, rows_of
from axcore.layers.attention.key_store import Keys, KeyStore, Places, Values
from axcore.layers.serving_room import KVCacheConfig
from axcore.layers.tokens import TokenInfo
from axcore.module import Module

PAGE_SIZE = 256
"""Tokens of the pages as which rows are read where a call has not all of them."""


class ContiguousCache(Module):
    """Keeps the keys and values of each row in room of its own, for `capacity` tokens.

    The token at position `p` of a row has place `p`; what no longer fits is dropped, and so is
    padding. A call with slots reads its rows as pages of the whole room, so none is copied. Slot
    protocol: the parent fills `num_kv_heads`, `head_dim` and `value_dim`.
    """

    @config
    class Config(Module.Config["ContiguousCache"]):
        """Describes a `ContiguousCache`.

        Args:
            num_kv_heads: Number of key and value heads.
            head_dim: Size of a key.
            value_dim: Size of a value; None where keys are the values, too.
            store: The form in which both are kept.
            num_rows: Rows that there is room for.
            capacity: Tokens of a row that there is room for.
        """

        num_kv_heads: PositiveInt = REQUIRED
        head_dim: PositiveInt = REQUIRED
        value_dim: PositiveInt | None = REQUIRED
        store: Module.Config = KeyStore.Config()
        num_rows: PositiveInt = REQUIRED
        capacity: PositiveInt = REQUIRED

        def in_room(self, room: KVCacheConfig) -> "ContiguousCache.Config":
            """Returns the config of a cache for so much."""
            return evolve(self, num_rows=room.num_rows, capacity=room.capacity)

    def setup(self, cfg: Config) -> None:
        """Builds the store."""
        self.store = built_store(cfg, cfg.num_rows, cfg.capacity, row_axis="batch")

    def forward(self, k: Keys, v: Values, info: TokenInfo) -> tuple[Any, Any, TokenInfo]:
        """Returns all keys and values of each row, the new ones among them, and how to read them.

        They are `[R, S, K, size]`, or the same cut into pages.

        Raises:
            ModuleError: The call does not say how many tokens each row has, or has other rows than
                the cache and does not say which.
        """
        check_continued(k, info)
        rows = rows_of(k.shape[0], self.config.num_rows, info)
        places = Places(rows[:, None], info.kept_places(self.config.capacity))
        info = info._replace(page_table=None)
        if info.slots is None:
            return self.store(k, v, places, info)
        return self._as_pages(self.store(k, v, places, info), rows)

    def _as_pages(
        self, kept: tuple[Any, Any, TokenInfo], rows: Int[Array, " batch"]
    ) -> tuple[Any, Any, TokenInfo]:
        keys, values, info = kept
        size = math.gcd(self.config.capacity, PAGE_SIZE)
        count = self.config.capacity // size
        table = rows[:, None] * count + jnp.arange(count, dtype=jnp.int32)[None, :]
        keys, values, scales = jax.tree.map(
            lambda x: x.reshape(-1, size, *x.shape[2:]), (keys, values, info.scales)
        )
        return keys, values, info._replace(page_table=table, scales=scales)
