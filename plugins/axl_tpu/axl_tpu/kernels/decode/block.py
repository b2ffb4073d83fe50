"""The blocks of a cache in decode attention: how it is cut, and the arithmetic on one of them.

A contiguous cache is a pool with one page for each row. Small pages are put together to a block;
of large ones a block is a part, the last of which reaches back so that all have one size.

Letters: B rows, P pages of a row, C keys of a page, T queries of a row, N query heads, K key heads,
H key width, V value width, R = T N rows of queries, X = keys of a block times K.
"""

import math
from typing import Any, NamedTuple

import attrs
import jax.numpy as jnp
from jax import Array, lax

from axcore.ops import DecodeSpec

TILE, NARROW_TILE = 16, 32
"""Rows of memory of which a copy must hold full multiples; the other is that of 8 bits."""


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
        """Return the cut into blocks of about so many keys."""
        # Rows of a copy are keys times heads, so that few keys may already be full tiles.
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
        """Return which page of its row a block begins with."""
        return quotient(block, self.parts) * self.pages

    def start(self, block: Any) -> Any:
        """Return with which key of its page a block begins."""
        # The last part reaches back over keys that the one before held: all copies have one
        # static size, and `positions` hides those keys the second time.
        return jnp.minimum(remainder(block, self.parts) * self.size, self.padded - self.size)

    def block_of(self, key: Array) -> Array:
        """Return the block that holds a key of a row."""
        page, offset = quotient(key, self.page), remainder(key, self.page)
        part = quotient(offset, self.size) if self.parts > 1 else 0
        return quotient(page, self.pages) * self.parts + part

    def positions(self, key: Array, block: Array) -> tuple[Array, Array]:
        """Return the positions in their row of a block's keys, and which of them are its own.

        Those are not padding, and were in no block before.
        """
        offset = self.start(block) + remainder(key, self.size)
        position = (self.first_page(block) + quotient(key, self.size)) * self.page + offset
        first = remainder(block, self.parts) * self.size
        is_own = (offset < self.page) & (offset >= first)
        return position, is_own


def quotient(x: Any, divisor: int) -> Any:
    """Return the quotient of integers >= 0, without the steps that negative ones need."""
    return lax.div(x, divisor) if divisor > 1 else x


def remainder(x: Any, divisor: int) -> Any:
    """Return the remainder of integers >= 0, without the steps that negative ones need."""
    return lax.rem(x, divisor) if divisor > 1 else x * 0


@attrs.frozen
class BlockFacts:
    """What is the same for all blocks of a call.

    Args:
        queries: T.
        heads: N.
        key_heads: K.
        cut: How the cache is cut.
        spec: The call's choices.
    """

    queries: int
    heads: int
    key_heads: int
    cut: CacheBlocking
    spec: DecodeSpec

    def seen(self, length: Array) -> tuple[Array, Array]:
        """Return the first key that any query of a row sees, and the end of those."""
        if self.spec.left is None:
            return jnp.zeros_like(length), length
        return jnp.maximum(length - self.queries - self.spec.left, 0), length

    def blocks(self, seen: tuple[Array, Array]) -> tuple[Array, Array]:
        """Return the first block with such a key, and the end of those."""
        first, end = seen
        last = self.cut.block_of(jnp.maximum(end - 1, 0))
        return self.cut.block_of(first), jnp.where(end > first, last + 1, 0)

    def positions(self, row_X: Array, block: Array) -> tuple[Array, Array]:
        """Return the positions of a block's keys, and which are its own, by row of the block."""
        return self.cut.positions(quotient(row_X, self.key_heads), block)


class Sums(NamedTuple):
    """Sums over the keys seen so far, relative to the largest logit so far; float32."""

    weighted_RV: Array
    maximum_R1: Array
    total_R1: Array

    @classmethod
    def start(cls, shape_RV: tuple[int, ...], sinks_R1: Array | None) -> "Sums":
        """Return the sums before the first key: nothing, or the sinks alone."""
        shape_R1 = (shape_RV[0], 1)
        maximum, total = jnp.full(shape_R1, -jnp.inf, jnp.float32), jnp.zeros(shape_R1, jnp.float32)
        if sinks_R1 is not None:
            maximum, total = sinks_R1, jnp.ones(shape_R1, jnp.float32)
        return cls(jnp.zeros(shape_RV, jnp.float32), maximum, total)

    def mean(self) -> Array:
        """Return the weighted means; 0 where nothing was seen."""
        # No key seen: 0 / 1 in place of 0 / 0.
        return self.weighted_RV / jnp.where(self.total_R1 == 0.0, 1.0, self.total_R1)


@attrs.frozen(eq=False)
class Block:
    """A row's queries and one block of its keys and values, in VMEM.

    Keys and values of 8 bits have scales, `[1, X]`: products are multiplied by those of keys, and
    weights by those of values.
    """

    q_ref: Any
    k_ref: Any
    v_ref: Any
    scale_refs: tuple[Any, ...]
    facts: BlockFacts

    def added_to(self, sums: Sums, block: Array, length: Array, *, is_edge: Array) -> Sums:
        """Return the sums with the block more.

        Args:
            sums: Of the blocks before.
            block: The block's number.
            length: Tokens of the row.
            is_edge: Whether the block may hold keys that are not there.
        """

        def hide_what_is_not_there() -> None:
            v_XV = self.v_ref[...].astype(jnp.float32)
            row_XV = lax.broadcasted_iota(jnp.int32, v_XV.shape, 0)
            position_XV, is_own_XV = self.facts.positions(row_XV, block)
            first, _ = self.facts.seen(length)
            is_seen_XV = is_own_XV & (position_XV >= first) & (position_XV < length)
            self.v_ref[...] = _as(jnp.where(is_seen_XV, v_XV, 0.0), self.v_ref.dtype)

        # Only blocks at the ends of what is seen can hold keys that are not there, and the pass
        # over all values is paid there alone. Keys need none: their logits are replaced.
        lax.cond(is_edge, hide_what_is_not_there, lambda: None)
        logits_RX = jnp.where(self._visible(block, length), self._logits(), -jnp.inf)
        maximum_R1 = jnp.maximum(sums.maximum_R1, jnp.max(logits_RX, axis=1, keepdims=True))
        # -inf - -inf is NaN; by a shift of 0 exponentials of a row that saw nothing are 0.
        shift_R1 = jnp.where(maximum_R1 == -jnp.inf, 0.0, maximum_R1)
        exponentials_RX = jnp.exp(logits_RX - shift_R1)
        decay_R1 = jnp.exp(sums.maximum_R1 - shift_R1)
        v_XV, weights_RX = self._wide(self.v_ref), exponentials_RX
        if self.scale_refs:
            weights_RX = weights_RX * self.scale_refs[1][...]
        weighted_RV = _matmul(weights_RX.astype(v_XV.dtype), v_XV, ((1,), (0,)))
        return Sums(
            sums.weighted_RV * decay_R1 + weighted_RV,
            maximum_R1,
            sums.total_R1 * decay_R1 + jnp.sum(exponentials_RX, axis=1, keepdims=True),
        )

    def _logits(self) -> Array:
        spec = self.facts.spec
        logits_RX = _matmul(self.q_ref[...], self._wide(self.k_ref), ((1,), (1,))) * spec.scale
        if self.scale_refs:
            logits_RX = logits_RX * self.scale_refs[0][...]
        if spec.soft_cap is None:
            return logits_RX
        return spec.soft_cap * jnp.tanh(logits_RX / spec.soft_cap)

    def _wide(self, ref: Any) -> Array:
        """Return keys or values in the dtype of queries, which holds all numbers of 8 bits."""
        return _as(ref[...], self.q_ref.dtype)

    def _visible(self, block: Array, length: Array) -> Array:
        """Return which pairs of a query's and a key's heads belong together, and are visible."""
        facts, left = self.facts, self.facts.spec.left
        num_rows, num_columns = self.q_ref.shape[0], self.k_ref.shape[0]
        row_R1 = lax.broadcasted_iota(jnp.int32, (num_rows, 1), 0)
        column_1X = lax.broadcasted_iota(jnp.int32, (1, num_columns), 1)
        own_R1 = length - facts.queries + quotient(row_R1, facts.heads)
        head_R1 = quotient(remainder(row_R1, facts.heads), facts.heads // facts.key_heads)
        position_1X, is_own_1X = facts.positions(column_1X, block)
        # -1 is not a head, so one comparison hides padding and keys of another block, too.
        head_1X = jnp.where(is_own_1X, remainder(column_1X, facts.key_heads), -1)
        mask_RX = (head_R1 == head_1X) & (position_1X <= own_R1)
        return mask_RX if left is None else mask_RX & (position_1X >= own_R1 - left)


def _as(x: Array, dtype: Any) -> Array:
    """Return numbers in another dtype, from and to 8 bits by way of float32."""
    return x if x.dtype == dtype else x.astype(jnp.float32).astype(dtype)


def _matmul(a: Array, b: Array, contracting: tuple[tuple[int, ...], tuple[int, ...]]) -> Array:
    # The default would round float32 operands to bfloat16, and no reference in float32 would
    # agree.
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return lax.dot_general(
        a, b, (contracting, ((), ())), precision=precision, preferred_element_type=jnp.float32
    )
