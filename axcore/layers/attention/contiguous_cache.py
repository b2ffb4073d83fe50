"""`ContiguousCache`: room for the tokens of each row, one after the other.

Letters of shapes: R rows that there is room for, S tokens of each, K key heads.
"""

import math
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ModuleError
from axcore.layers.attention.cache_parts import (
    AllKeys,
    AllValues,
    Keys,
    Values,
    check_continued,
    key_room,
    with_new,
)
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
            value_dim: Size of a value.
            num_rows: Rows that there is room for.
            capacity: Tokens of a row that there is room for.
        """

        num_kv_heads: PositiveInt = REQUIRED
        head_dim: PositiveInt = REQUIRED
        value_dim: PositiveInt = REQUIRED
        num_rows: PositiveInt = REQUIRED
        capacity: PositiveInt = REQUIRED

    def setup(self, cfg: Config) -> None:
        """Declares the room."""
        self.keys, self.values = self._room(cfg.head_dim), self._room(cfg.value_dim)

    def forward(self, k: Keys, v: Values, info: TokenInfo) -> tuple[AllKeys, AllValues, TokenInfo]:
        """Returns all keys and values of each row, the new ones among them, and how to read them.

        They are `[R, S, K, size]`, or the same cut into pages.

        Raises:
            ModuleError: The call does not say how many tokens each row has, or has other rows than
                the cache and does not say which.
        """
        check_continued(info)
        rows = self._rows(k.shape[0], info)
        places = info.kept_places(self.config.capacity)
        keys = with_new(self.keys, k, rows[:, None], places)
        values = with_new(self.values, v, rows[:, None], places)
        self.update("keys", keys)
        self.update("values", values)
        if info.slots is None:
            return keys, values, info._replace(page_table=None)
        page = math.gcd(self.config.capacity, PAGE_SIZE)
        num_pages = self.config.capacity // page
        numbers = jnp.arange(num_pages, dtype=jnp.int32)[None, :]
        table = rows[:, None] * num_pages + numbers
        return _paged(keys, page), _paged(values, page), info._replace(page_table=table)

    def _room(self, size: int) -> Any:
        cfg = self.config
        shape = (cfg.num_rows, cfg.capacity, cfg.num_kv_heads, size)
        return key_room(shape, ("batch", None, "kv_heads", None), self.dtypes.compute)

    def _rows(self, batch: int, info: TokenInfo) -> Int[Array, " batch"]:
        if info.slots is not None:
            return info.slots
        if batch != self.config.num_rows:
            raise ModuleError(
                f"the call has {batch} rows, and the cache {self.config.num_rows}",
                hint="say which of them they are: continued_rows(..., slots=slots)",
            )
        return jnp.arange(batch, dtype=jnp.int32)


def _paged(
    x: Float[Array, "rows room kv_heads size"], page: int
) -> Float[Array, "pages page kv_heads size"]:
    return x.reshape(-1, page, *x.shape[2:])
