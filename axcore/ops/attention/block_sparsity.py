"""Which pairs of blocks have anything to compute, as far as only the arrays of a call show.

What causality and window hide is known before a program runs (`blocking.py`). Documents,
key ranges and offsets are known when it does: there a pair of blocks is passed over where the
bounds of its queries and those of its keys show that no query sees a key.
"""

from collections.abc import Callable
from typing import TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from axcore.ops.attention.blocking import BlockedCall
from axcore.ops.control_flow import branch

_T = TypeVar("_T")
_LARGEST = int(np.iinfo(np.int32).max)


def active_at_run_time(call: BlockedCall, pairs: Array) -> Array | None:
    """Return whether each of the pairs `[P, 2]` may have visible keys; None where all may."""
    i, j = pairs[:, 0], pairs[:, 1]
    first, last = j * call.keys.size, (j + 1) * call.keys.size - 1
    conditions = []
    if call.rows.segments is not None and call.columns.segments is not None:
        q_low, q_high = block_bounds(call.rows.segments, call.rows.segments != 0)
        k_low, k_high = block_bounds(call.columns.segments, call.columns.segments != 0)
        conditions.append((q_low[i] <= k_high[j]) & (k_low[j] <= q_high[i]))
    if call.rows.k_start is not None and call.rows.k_end is not None:
        is_range = call.rows.k_start < call.rows.k_end
        low, _ = block_bounds(call.rows.k_start, is_range)
        _, high = block_bounds(call.rows.k_end, is_range)
        conditions.append((low[i] <= last[:, None]) & (high[i] > first[:, None]))
    if call.has_offsets:
        low, high = block_bounds(call.rows.position)
        if call.spec.left is not None:
            conditions.append(last[:, None] >= low[i] - call.spec.left)
        if call.spec.right is not None:
            conditions.append(first[:, None] <= high[i] + call.spec.right)
    if not conditions:
        return None
    live = conditions[0]
    for condition in conditions[1:]:
        live = live & condition
    return jnp.any(live, axis=1)


def where_active(
    is_active: Array | None, compute: Callable[[], _T], otherwise: Callable[[], _T]
) -> _T:
    """Return `compute()`, or where the pair is not live `otherwise()`, by `branch`."""
    if is_active is None:
        return compute()
    return branch(is_active, compute, otherwise)


def block_bounds(values: Array, counts: Array | None = None) -> tuple[Array, Array]:
    """Return the least and largest of each block's entries that count, `[blocks, B]`.

    Args:
        values: Integers `[blocks, B, size]`.
        counts: Which of them count; all if left out.
    """
    values = values.astype(jnp.int32)
    if counts is None:
        return jnp.min(values, axis=2), jnp.max(values, axis=2)
    low = jnp.min(jnp.where(counts, values, _LARGEST), axis=2)
    high = jnp.max(jnp.where(counts, values, -_LARGEST), axis=2)
    return low, high
