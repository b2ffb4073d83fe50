"""Dropout of attention probabilities by a counter hash.

Whether the probability at (batch row, head, query, key) is kept depends on those four numbers and
the seed alone, so every kernel on every platform, whatever its block sizes, drops the same entries.
"""

import jax.numpy as jnp
from jax import Array


def dropout_seeds(seed: Array, batch: int, num_heads: int) -> Array:
    """Return uint32 `[B, N]`: a seed for each head of each batch row, from one for the call.

    They can be split over devices like rows and heads; what a part drops stays the same.
    """
    rows, heads = (jnp.arange(size, dtype=jnp.uint32) for size in (batch, num_heads))
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
    return _mix(key + jnp.uint32(0x9E3779B9))


def dropout_of(rows: Array, columns: Array, rate: float) -> Array:
    """Return the float32 factors of pairs, of `dropout_rows` and `dropout_columns` that meet."""
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
