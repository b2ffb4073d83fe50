"""Which query sees which key, and which probabilities dropout drops.

`Rows` and `Columns` hold what visibility depends on, per query and per key. Both are pytrees of
arrays whose last axis is queries or keys, so that a block is a slice of every part. Positions are
places along the key axis; masks are boolean `[B or 1, 1, 1, T, S]`, `True` where visible.

Whether dropout keeps the probability at (batch row, head, query, key) depends on those four numbers
and the seed alone, so every kernel on every platform, whatever its block sizes, drops the same
entries.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from axcore.ops.attention.op import AttentionInputs, AttentionSpec


class Rows(NamedTuple):
    """What visibility needs of each query; leading axis of size B or 1."""

    position: Array
    segments: Array | None
    k_start: Array | None
    k_end: Array | None


class Columns(NamedTuple):
    """What visibility needs of each key; leading axis of size B or 1."""

    position: Array
    segments: Array | None


def rows(inputs: AttentionInputs, spec: AttentionSpec) -> Rows:
    """Return the rows of a call."""
    position = jnp.arange(inputs.q_BTNH.shape[1], dtype=jnp.int32)[None, :] + spec.query_offset
    if inputs.query_offset_B is not None:
        position = position + inputs.query_offset_B[:, None]
    return Rows(position, inputs.q_segments_BT, inputs.k_start_BT, inputs.k_end_BT)


def columns(inputs: AttentionInputs) -> Columns:
    """Return the columns of a call."""
    position = jnp.arange(inputs.k_BSKH.shape[1], dtype=jnp.int32)[None, :]
    return Columns(position, inputs.k_segments_BS)


def visible(
    spec: AttentionSpec, rows: Rows, columns: Columns, *, num_keys: int | None = None
) -> Array | None:
    """Return the mask of a block, or `None` when every query sees every key.

    Args:
        spec: The bounds of the window.
        rows: Of the block's queries.
        columns: Of the block's keys.
        num_keys: Keys at or after this position are padding; `None` when there is none.
    """
    query = _as_query(rows.position)
    key = _as_key(columns.position)
    conditions = []
    if spec.left is not None:
        conditions.append(key >= query - spec.left)
    if spec.right is not None:
        conditions.append(key <= query + spec.right)
    if num_keys is not None:
        conditions.append(key < num_keys)
    if rows.segments is not None and columns.segments is not None:
        q_segments, k_segments = _as_query(rows.segments), _as_key(columns.segments)
        conditions.append((q_segments == k_segments) & (k_segments != 0))
    if rows.k_start is not None and rows.k_end is not None:
        conditions.append((key >= _as_query(rows.k_start)) & (key < _as_query(rows.k_end)))
    if not conditions:
        return None
    mask = conditions[0]
    for condition in conditions[1:]:
        mask = mask & condition
    return mask


def _as_query(x_BT: Array) -> Array:
    return x_BT[:, None, None, :, None]


def _as_key(x_BS: Array) -> Array:
    return x_BS[:, None, None, None, :]


def dropout_seeds(seed: Array, batch: int, num_heads: int) -> Array:
    """Return uint32 `[B, N]`: a seed for each head of each batch row, from one for the call.

    They can be split over devices like rows and heads; what a part drops stays the same.
    """
    rows, heads = (jnp.arange(size, dtype=jnp.uint32) for size in (batch, num_heads))
    # A hash of the place, not `jax.random`: a kernel computes it from its own indices, and
    # whoever splits or tiles the call differently drops the same entries. Pallas' own generator
    # is zeros or fails off the chip.
    return _mix(_mix(rows[:, None] ^ seed.astype(jnp.uint32)) + heads[None, :])


def dropout_factor(
    seeds_BN: Array,
    rate: float,
    *,
    num_queries: int,
    num_keys: int,
    query_start: Array | int = 0,
    key_start: Array | int = 0,
) -> Array:
    """Return float32 `[B, N, T, S]`: 0 where dropped, `1 / (1 - rate)` where kept.

    Args:
        seeds_BN: What `dropout_seeds` gives.
        rate: Chance to drop, in (0, 1).
        num_queries: Queries of the block.
        num_keys: Keys of the block.
        query_start: Index of the block's first query.
        key_start: Index of the block's first key.
    """
    queries, keys = (jnp.arange(size, dtype=jnp.uint32) for size in (num_queries, num_keys))
    queries = queries + jnp.asarray(query_start, jnp.uint32)
    keys = keys + jnp.asarray(key_start, jnp.uint32)
    row_BNT = dropout_rows(seeds_BN[:, :, None], queries[None, None, :])
    column_S = dropout_columns(keys)
    return dropout_of(row_BNT[..., None], column_S[None, None, None, :], rate)


def dropout_rows(seed: Array, query: Array) -> Array:
    """Return uint32, each query's share of what is dropped, from its head's seed and its index."""
    return _mix(seed + _mix(query))


def dropout_columns(key: Array) -> Array:
    """Return uint32, each key's share of what is dropped, from its index."""
    # The constant, 2^32 over the golden ratio, keeps key 0 from mixing to 0 as a seed of 0 would.
    return _mix(key + jnp.uint32(0x9E3779B9))


def dropout_of(rows: Array, columns: Array, rate: float) -> Array:
    """Return the float32 factors of pairs, of `dropout_rows` and `dropout_columns` that meet."""
    # Compared as integers: a float32 made of 32 bits rounds, and would move the rate.
    threshold = jnp.uint32(min(int(rate * 2.0**32), 2**32 - 1))
    is_kept = _mix(rows ^ columns) >= threshold
    return jnp.where(is_kept, jnp.float32(1.0 / (1.0 - rate)), jnp.float32(0.0))


def _mix(x: Array) -> Array:
    """Return a uint32 whose every bit depends on every bit of `x`.

    Source: Ettinger 2018, hash-prospector, `lowbias32`.
    """
    x = (x ^ (x >> jnp.uint32(16))) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> jnp.uint32(15))) * jnp.uint32(0x846CA68B)
    mixed: Array = x ^ (x >> jnp.uint32(16))
    return mixed
