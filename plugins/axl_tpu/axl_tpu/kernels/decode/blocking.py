"""How the cache of decode attention is cut into blocks, and which of them a row needs.

A contiguous cache is a pool with one page for each row. Small pages are put together to a block;
of large ones a block is a part, the last of which reaches back so that all have one size.

Letters: B rows, P pages of a row, C keys of a page.
"""

import math
from typing import Any

import attrs
import jax.numpy as jnp
from jax import Array, lax

TILE, NARROW_TILE = 16, 32
"""Rows of memory of which a copy must hold whole multiples; the other is that of 8 bits."""


@attrs.frozen
class CacheBlocking:
    """Blocks of the cache.

    Args:
        page: C.
        pages: How many pages a block holds; 1 where a page is cut.
        parts: How many blocks a page is cut into; 1 where a block holds several.
        size: Keys that are copied at once: a page, with its padding, or a part of one.
        padded: Keys of a page with its padding.
    """

    page: int
    pages: int
    parts: int
    size: int
    padded: int

    @classmethod
    def of(
        cls, page: int, pages_of_row: int, key_heads: int, block_keys: int, tile: int = TILE
    ) -> "CacheBlocking":
        """Returns the cut into blocks of about so many keys."""
        unit = tile // math.gcd(tile, key_heads)
        padded = -(-page // unit) * unit
        if padded <= block_keys:
            return cls(page, min(pages_of_row, block_keys // padded), 1, padded, padded)
        parts = -(-padded // max(unit, block_keys // unit * unit))
        return cls(page, 1, parts, -(-padded // (parts * unit)) * unit, padded)

    @property
    def keys(self) -> int:
        """Keys of a block."""
        return self.pages * self.size

    def first_page(self, block: Any) -> Any:
        """Returns which page of its row a block begins with."""
        return quotient(block, self.parts) * self.pages

    def start(self, block: Any) -> Any:
        """Returns with which key of its page a block begins."""
        return jnp.minimum(remainder(block, self.parts) * self.size, self.padded - self.size)

    def block_of(self, key: Array) -> Array:
        """Returns the block that holds a key of a row."""
        page, offset = quotient(key, self.page), remainder(key, self.page)
        part = quotient(offset, self.size) if self.parts > 1 else 0
        return quotient(page, self.pages) * self.parts + part

    def positions(self, key: Array, block: Array) -> tuple[Array, Array]:
        """Returns the positions in their row of a block's keys, and which of them are its own.

        Those are no padding, and were in no block before.
        """
        offset = self.start(block) + remainder(key, self.size)
        position = (self.first_page(block) + quotient(key, self.size)) * self.page + offset
        first = remainder(block, self.parts) * self.size
        is_own = (offset < self.page) & (offset >= first)
        return position, is_own


def quotient(x: Any, divisor: int) -> Any:
    """Returns the quotient of integers >= 0, without the steps that negative ones need."""
    return lax.div(x, divisor) if divisor > 1 else x


def remainder(x: Any, divisor: int) -> Any:
    """Returns the remainder of integers >= 0, without the steps that negative ones need."""
    return lax.rem(x, divisor) if divisor > 1 else x * 0
