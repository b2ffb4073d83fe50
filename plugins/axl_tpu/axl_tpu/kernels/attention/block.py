"""What one visit of a flash attention kernel computes, whichever way its scores are laid out.

Scores of a visit are `[Q, J]`, queries by keys, or where gradients of keys are summed `[J, Q]`:
what is per query is along the lanes of a row `[1, Q]` in one and has to be in a column in
the other. Columns are kept as `[Q, LANES]` with equal lanes, which vector units read as they are.
Logits are in powers of two: `exp(x) == exp2(x * LOG2E)`, and the factor joins the scale.

Letters: Q queries and J keys of a block, H key width, V value width.
"""

import math
from typing import Any

import attrs
import jax.numpy as jnp
from jax import Array, lax

from axcore.ops import AttentionSpec, dropout_columns, dropout_of, dropout_rows
from axl_tpu.kernels.attention.block_schedule import LANES, Blocking

LOG2E = math.log2(math.e)
LN2 = math.log(2.0)

# Not -inf: the difference of two would be NaN, and to avoid that would cost a select for each
# score.
HIDDEN = -1e30
"""The logit of a pair that is not visible; finite, so that differences of two are not NaN."""

# Between HIDDEN and every logit: a row whose maximum is still HIDDEN has seen nothing, and what
# its exponentials of 0 added up to is thrown away.
SEEN = -1e29
"""Rows whose largest logit is below have seen nothing."""

LEAST_ID = int(jnp.iinfo(jnp.int32).min)
"""Marks padding among keys' segments, where no query's segment equals it."""


@attrs.frozen
class BlockShape:
    """The static side of a visit: how scores are laid out, and the call they belong to."""

    spec: AttentionSpec
    cut: Blocking
    by_keys: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the scores."""
        sizes = self.cut.queries.size, self.cut.keys.size
        return sizes[::-1] if self.by_keys else sizes

    def place_of_query(self) -> Array:
        """Return each score's query, counted from the block's first."""
        return lax.broadcasted_iota(jnp.int32, self.shape, int(self.by_keys))

    def place_of_key(self) -> Array:
        """Return each score's key, counted from the block's first."""
        return lax.broadcasted_iota(jnp.int32, self.shape, 1 - int(self.by_keys))

    # Where queries are along lanes, a row broadcasts to the scores for free; a column of one number
    # per query has to be spread over lanes.
    def of_queries(self, per_query: Array) -> Array:
        """Return a row or column of queries, able to meet the scores."""
        return per_query if self.by_keys else spread(per_query, self.shape[1])

    def of_keys(self, per_key: Array) -> Array:
        """Return a row or column of keys, able to meet the scores."""
        return spread(per_key, self.shape[1]) if self.by_keys else per_key


def column(row: Array) -> Array:
    """Return `[Q, LANES]`, equal in all lanes, from a row `[1, Q]`."""
    # Broadcast first and transposed whole: a transposed register is cheap, a column of one lane
    # wastes the others and is spread again at each use.
    return jnp.broadcast_to(row, (LANES, row.shape[1])).T


def spread(column: Array, width: int) -> Array:
    """Return a column `[Q, LANES]` over `width` lanes."""
    repeats = -(-width // LANES)
    wide = jnp.tile(column, (1, repeats)) if repeats > 1 else column
    return wide if wide.shape[1] == width else wide[:, :width]


def matmul(a: Array, b: Array, contract: tuple[int, int]) -> Array:
    """Return the float32 product of two matrices along one axis of each."""
    dims = (((contract[0],), (contract[1],)), ((), ()))
    return lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


def inside(x: Array, first: Array, length: int, *, axis: int = 0) -> Array:
    """Return `x` with zeros at or after `length` along an axis, where the array has ended."""
    place = lax.broadcasted_iota(jnp.int32, x.shape, axis)
    # By way of float32, since vector units select in 32 bits. Past an array's end there is
    # whatever was in VMEM, and 0 * NaN is NaN.
    return jnp.where(place < length - first, x.astype(jnp.float32), 0.0).astype(x.dtype)


def capped(scores: Array, spec: AttentionSpec) -> tuple[Array, Array | None]:
    """Return the logits in powers of two, and the tanh that their gradient needs, if any."""
    if spec.soft_cap is None:
        return scores * (spec.scale * LOG2E), None
    tanh = jnp.tanh(scores * (spec.scale / spec.soft_cap))
    return tanh * (spec.soft_cap * LOG2E), tanh


def visible(
    block: BlockShape,
    i: Array,
    j: Array,
    *,
    offset: Array | int,
    queries: Any,
    k_segments: Array | None,
) -> Array | None:
    """Return the mask of a visit, None where nothing can be hidden.

    Args:
        block: How the scores are laid out.
        i: The query block.
        j: The key block.
        offset: Place of the call's first query on the key axis.
        queries: References to rows or columns of the block's queries, by `q_segments`, `k_start`
            and `k_end`.
        k_segments: Row or column of the block's keys, `LEAST_ID` for padding.
    """
    spec, cut = block.spec, block.cut
    first_query, first_key = i * cut.queries.size, j * cut.keys.size
    # All of a block's place in one scalar: conditions compare the difference of two counts that
    # are the same in every block.
    shift = first_key - first_query - offset
    query, key = block.place_of_query(), block.place_of_key()
    conditions = []
    if spec.left is not None:
        conditions.append(key - query >= -spec.left - shift)
    if spec.right is not None:
        conditions.append(key - query <= spec.right - shift)
    if cut.keys.is_padded:
        conditions.append(key < cut.keys.length - first_key)
    # Only where gradients of keys sum over queries; rows past the end are otherwise not written.
    if cut.queries.is_padded and block.by_keys:
        conditions.append(query < cut.queries.length - first_query)
    if k_segments is not None:
        conditions.append(block.of_queries(queries.q_segments[...]) == block.of_keys(k_segments))
    if queries.k_start is not None:
        conditions.append(key >= block.of_queries(queries.k_start[...]) - first_key)
        conditions.append(key < block.of_queries(queries.k_end[...]) - first_key)
    if not conditions:
        return None
    mask = conditions[0]
    for condition in conditions[1:]:
        mask = mask & condition
    return mask


def dropout(block: BlockShape, i: Array, j: Array, seed: Array) -> Array:
    """Return the factors of a visit's probabilities, those of `dropout_factor`."""
    queries, keys = block.cut.queries.size, block.cut.keys.size
    query_shape, key_shape = (
        ((1, queries), (keys, LANES)) if block.by_keys else ((queries, LANES), (1, keys))
    )
    rows = dropout_rows(seed, _numbers(query_shape, i * queries, int(block.by_keys)))
    columns = dropout_columns(_numbers(key_shape, j * keys, 1 - int(block.by_keys)))
    return dropout_of(block.of_queries(rows), block.of_keys(columns), block.spec.dropout_rate)


def _numbers(shape: tuple[int, int], first: Array, axis: int) -> Array:
    """Return uint32 that count from `first` along an axis."""
    return (lax.broadcasted_iota(jnp.int32, shape, axis) + first).astype(jnp.uint32)
