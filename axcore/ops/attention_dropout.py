"""Dropout of attention probabilities by a counter hash.

Whether the probability at (batch row, head, query, key) is kept depends on those four numbers and
the seed alone, so every kernel on every platform, whatever its block sizes, drops the same entries.
"""

import jax.numpy as jnp
from jax import Array


def dropout_factor(
    seed: Array,
    rate: float,
    *,
    shape: tuple[int, int, int, int],
    query_start: Array | int = 0,
    key_start: Array | int = 0,
) -> Array:
    """Return float32 `[B, N, T, S]`: 0 where dropped, `1 / (1 - rate)` where kept.

    Args:
        seed: uint32 scalar.
        rate: Chance to drop, in (0, 1).
        shape: Batch, heads, queries, keys of the block.
        query_start: Index of the block's first query.
        key_start: Index of the block's first key.
    """
    batch, heads, queries, keys = (jnp.arange(size, dtype=jnp.uint32) for size in shape)
    queries = queries + jnp.asarray(query_start, jnp.uint32)
    keys = keys + jnp.asarray(key_start, jnp.uint32)
    row = _mix(_mix(batch[:, None] ^ seed.astype(jnp.uint32)) + heads[None, :])
    row = _mix(row[:, :, None] + _mix(queries)[None, None, :])
    bits = _mix(row[..., None] ^ _mix(keys + jnp.uint32(0x9E3779B9))[None, None, None, :])
    threshold = jnp.uint32(min(int(rate * 2.0**32), 2**32 - 1))
    return jnp.where(bits >= threshold, jnp.float32(1.0 / (1.0 - rate)), jnp.float32(0.0))


def _mix(x: Array) -> Array:
    """Return a uint32 whose every bit depends on every bit of `x`.

    Source: Ettinger 2018, hash-prospector, `lowbias32`.
    """
    x = (x ^ (x >> jnp.uint32(16))) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> jnp.uint32(15))) * jnp.uint32(0x846CA68B)
    mixed: Array = x ^ (x >> jnp.uint32(16))
    return mixed
