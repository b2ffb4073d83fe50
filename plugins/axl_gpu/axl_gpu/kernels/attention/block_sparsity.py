"""Which query sees which key, as the kernels get it: a range of keys per query, and segments.

Causality, windows, offsets, key ranges and the end of the keys are all one range `[low, high)` of
each query, so kernels know of nothing else but segments. From both, `spans` says for a block of
queries (or keys) with which blocks of the other it has anything to do, and where it need not mask.

Letters: B batch, T queries, S keys, Q blocks of queries, L blocks of keys.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from axcore.ops import AttentionInputs, AttentionSpec

_LARGEST = int(np.iinfo(np.int32).max)


class Visibility(NamedTuple):
    """The keys `[low, high)` of each query, int32; and of those, only ones of its own segment."""

    low_BT: Array
    high_BT: Array
    q_segments_BT: Array | None
    k_segments_BS: Array | None


def visibility(inputs: AttentionInputs, spec: AttentionSpec) -> Visibility:
    """Return what the queries of a call see; a query that sees nothing has `high == 0`."""
    num_keys = inputs.k_BSKH.shape[1]
    position = jnp.arange(inputs.q_BTNH.shape[1], dtype=jnp.int32)[None, :] + spec.query_offset
    if inputs.query_offset_B is not None:
        position = position + inputs.query_offset_B.astype(jnp.int32)[:, None]
    low, high = jnp.zeros_like(position), jnp.full_like(position, num_keys)
    if spec.left is not None:
        low = jnp.maximum(low, position - spec.left)
    if spec.right is not None:
        high = jnp.minimum(high, position + spec.right + 1)
    if inputs.k_start_BT is not None and inputs.k_end_BT is not None:
        low = jnp.maximum(low, inputs.k_start_BT.astype(jnp.int32))
        high = jnp.minimum(high, inputs.k_end_BT.astype(jnp.int32))
    q_segments, k_segments = inputs.q_segments_BT, inputs.k_segments_BS
    if q_segments is not None and k_segments is not None:
        high = jnp.where(q_segments == 0, 0, high)
        q_segments, k_segments = q_segments.astype(jnp.int32), k_segments.astype(jnp.int32)
    # An empty range may be anywhere, past the last key or reversed. As [0, 0) it is hidden by the
    # one comparison that kernels make.
    sees_any = low < high
    batch = inputs.q_BTNH.shape[0]
    return Visibility(
        jnp.broadcast_to(jnp.where(sees_any, low, 0), (batch, low.shape[1])),
        jnp.broadcast_to(jnp.where(sees_any, high, 0), (batch, low.shape[1])),
        q_segments,
        k_segments,
    )


def padded(seen: Visibility, num_queries: int, num_keys: int) -> Visibility:
    """Return the visibility of more queries and keys; those added see and show nothing."""
    more = num_queries - seen.low_BT.shape[1]
    low, high, q_segments, k_segments = seen
    if q_segments is not None and k_segments is not None:
        q_segments = jnp.pad(q_segments, ((0, 0), (0, more)))
        k_segments = jnp.pad(k_segments, ((0, 0), (0, num_keys - k_segments.shape[1])))
    return Visibility(
        jnp.pad(low, ((0, 0), (0, more))),
        jnp.pad(high, ((0, 0), (0, more))),
        q_segments,
        k_segments,
    )


class Spans(NamedTuple):
    """Four numbers a block: it has to do with blocks `[start, end)` of the other side, and sees
    those of `[full_start, full_end)` whole; int32.
    """

    of_queries_BQ4: Array
    of_keys_BL4: Array


def spans(seen: Visibility, *, num_keys: int, block_q: int, block_k: int) -> Spans:
    """Return the spans of all blocks; lengths are full blocks."""
    active_BQL, full_BQL = _pairs(seen, num_keys=num_keys, block_q=block_q, block_k=block_k)
    return Spans(
        _span(active_BQL, full_BQL),
        _span(jnp.swapaxes(active_BQL, 1, 2), jnp.swapaxes(full_BQL, 1, 2)),
    )


def _pairs(seen: Visibility, *, num_keys: int, block_q: int, block_k: int) -> tuple[Array, Array]:
    """Return whether a block of queries may see any key of a block, and whether it sees all."""
    batch = seen.low_BT.shape[0]
    low, high = (x.reshape(batch, -1, 1, block_q) for x in (seen.low_BT, seen.high_BT))
    first = jnp.arange(0, num_keys, block_k, dtype=jnp.int32)[None, None, :]
    end = first + block_k
    # Only rows that see something: by [0, 0) of the others a block would reach back to the first
    # key.
    least, _ = _bounds(low, low < high)
    _, most = _bounds(high, low < high)
    live = (least < end) & (most > first)
    # Over all rows, empty ones too: a block with a row that sees nothing has to be masked.
    full = (jnp.max(low, axis=3) <= first) & (jnp.min(high, axis=3) >= end)
    if seen.q_segments_BT is not None and seen.k_segments_BS is not None:
        q_segments = seen.q_segments_BT.reshape(batch, -1, 1, block_q)
        k_segments = seen.k_segments_BS.reshape(batch, 1, -1, block_k)
        q_least, q_most = _bounds(q_segments, q_segments != 0)
        k_least, k_most = _bounds(k_segments, k_segments != 0)
        # Ranges of ids, as comparing all pairs of tokens is quadratic in the length. Ids that go
        # up along a row, as packing makes them, are distinguished exactly; others cost a block that
        # is masked to nothing.
        live &= (q_least <= k_most) & (k_least <= q_most)
        # With padding counted, whose 0 is less than any id: a block that holds some is not whole.
        is_one = (jnp.min(q_segments, axis=3) == q_most) & (jnp.min(k_segments, axis=3) == k_most)
        full &= is_one & (q_least == q_most) & (k_least == k_most) & (q_most == k_most)
    return live, full & live


def _bounds(values: Array, counts: Array) -> tuple[Array, Array]:
    """Return the least and the largest of the last axis, of entries that count."""
    low = jnp.min(jnp.where(counts, values, _LARGEST), axis=-1)
    high = jnp.max(jnp.where(counts, values, -_LARGEST), axis=-1)
    return low, high


def _span(live: Array, full: Array) -> Array:
    count = live.shape[-1]
    index = jnp.arange(count, dtype=jnp.int32)[None, None, :]
    end = jnp.max(jnp.where(live, index + 1, 0), axis=-1)
    start = jnp.minimum(jnp.min(jnp.where(live, index, count), axis=-1), end)
    full_start = jnp.minimum(jnp.min(jnp.where(full, index, count), axis=-1), end)
    # Only the first run of full blocks: kernels mask whatever is outside of it, which is right
    # for any hole and costs time only where there are several runs.
    ends_here = ~full & (index >= full_start[..., None])
    full_end = jnp.minimum(jnp.min(jnp.where(ends_here, index, count), axis=-1), end)
    return jnp.stack([start, full_start, full_end, end], axis=-1)
