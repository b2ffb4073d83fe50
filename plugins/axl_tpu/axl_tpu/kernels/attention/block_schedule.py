"""The walk of a flash attention kernel: which pairs of query and key blocks it visits, in order.

A grid over all pairs would spend steps on pairs that show nothing, so the grid runs over a list of
those that do. What causality and window hide is left out when the program is made. What documents,
key ranges and offsets hide is known when it runs: there each row of the batch has its own list, as
long as the longest of them.

A visit is one integer: `query block << 17 | key block << 4 | flags`. Letters: B batch rows, P
visits, I query blocks, J key blocks.
"""

from typing import NamedTuple

import attrs
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from axcore.errors import KernelError
from axcore.ops import (
    AttentionInputs,
    AttentionSpec,
    Blocks,
    active_block_pairs,
    attention_columns,
    attention_rows,
    block_bounds,
)

LANES = 128
"""Lanes of a vector register, of which blocks are multiples."""

FIRST, LAST, LIVE, MASKED = 1, 2, 4, 8
"""First and last visit of a block of the outer axis; anything to compute; not all pairs visible."""

# Two numbers of 13 bits and four flags leave the sign bit of an int32 alone, and one integer a
# visit takes the least scalar memory.
_BLOCK_BITS, _FLAG_BITS = 13, 4
MAX_BLOCKS = 2**_BLOCK_BITS
"""Most blocks of either axis that a visit can name."""

MAX_SCHEDULE_STEPS = 2**17
"""Most visits of all rows on a device, whose lists take half of the scalar memory."""


class BlockSchedule(NamedTuple):
    """The lists of all rows, `[B or 1, P]`, and how many steps the longest takes."""

    codes_BP: Array
    num_steps: Array | int


@attrs.frozen
class Blocking:
    """How queries and keys are cut into blocks."""

    queries: Blocks
    keys: Blocks

    @classmethod
    def of(cls, inputs: AttentionInputs, block_q: int, block_k: int) -> "Blocking":
        """Return the cut of a call by blocks of these sizes, or as large as its axes need."""
        num_queries, num_keys = inputs.q_BTNH.shape[1], inputs.k_BSKH.shape[1]
        return cls(
            Blocks(num_queries, min(block_q, -(-num_queries // LANES) * LANES)),
            Blocks(num_keys, min(block_k, -(-num_keys // LANES) * LANES)),
        )


def query_block(code: Array) -> Array:
    """Return the query block of a visit."""
    return lax.shift_right_logical(code, jnp.int32(_BLOCK_BITS + _FLAG_BITS))


def key_block(code: Array) -> Array:
    """Return the key block of a visit."""
    return lax.shift_right_logical(code, jnp.int32(_FLAG_BITS)) & jnp.int32(MAX_BLOCKS - 1)


def has(code: Array, flag: int) -> Array:
    """Return whether a visit has a flag."""
    return (code & jnp.int32(flag)) != 0


def max_schedule_steps(cut: Blocking, spec: AttentionSpec, *, offset_is_static: bool) -> int:
    """Return how many visits a row may need at most; its list is held in scalar memory."""
    pairs = active_block_pairs(cut.queries, cut.keys, spec, offset_is_static=offset_is_static)
    return len(pairs) + cut.queries.num + cut.keys.num


def block_schedule(
    inputs: AttentionInputs, spec: AttentionSpec, cut: Blocking, *, by_keys: bool
) -> BlockSchedule:
    """Return the walk of a call.

    Every block of the outer axis is visited once at least, so that its output is written.

    Args:
        inputs: The call's arrays.
        spec: The call's static choices.
        cut: The blocks.
        by_keys: Whether key blocks are the outer axis, and not query blocks.
    """
    has_offsets = inputs.query_offset_B is not None
    active_P2 = active_block_pairs(cut.queries, cut.keys, spec, offset_is_static=not has_offsets)
    pairs_P2, is_active_P = _with_every_outer_block(active_P2, cut, by_keys)
    is_full_P = _is_full(pairs_P2, cut, spec, offset_is_static=not has_offsets)
    conditions = _Conditions.of(inputs, spec, cut, pairs_P2)
    outer_P = pairs_P2[:, int(by_keys)]
    if conditions is None:
        codes_P = (
            _places(pairs_P2) | np.where(is_active_P, LIVE, 0) | np.where(is_full_P, 0, MASKED)
        )
        codes_P |= np.where(np.diff(outer_P, prepend=-1) != 0, FIRST, 0)
        codes_P |= np.where(np.diff(outer_P, append=-1) != 0, LAST, 0)
        return BlockSchedule(jnp.asarray(codes_P[None], jnp.int32), len(codes_P))
    is_active_BP = conditions.may_see & is_active_P[None]
    is_masked_BP = ~(conditions.all_see & is_full_P[None])
    return _kept(pairs_P2, outer_P, is_active_BP, is_masked_BP)


def _with_every_outer_block(
    active_P2: np.ndarray, cut: Blocking, by_keys: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs sorted by outer block, one more for blocks that have none, and which live."""
    axis = int(by_keys)
    num_outer = cut.keys.num if by_keys else cut.queries.num
    # A block of outputs that no visit names is never written, and holds whatever was in memory.
    # So it gets a visit that computes nothing.
    missing = np.setdiff1d(np.arange(num_outer, dtype=np.int32), active_P2[:, axis])
    empty = np.zeros((len(missing), 2), np.int32)
    empty[:, axis] = missing
    pairs = np.concatenate([active_P2, empty])
    is_active = np.arange(len(pairs)) < len(active_P2)
    # By outer block first: its sums are in VMEM from its first visit to its last.
    order = np.lexsort((pairs[:, 1 - axis], pairs[:, axis]))
    return pairs[order], is_active[order]


def _is_full(
    pairs_P2: np.ndarray, cut: Blocking, spec: AttentionSpec, *, offset_is_static: bool
) -> np.ndarray:
    """Return of which pairs window and end of the arrays hide nothing."""
    first_query, first_key = (pairs_P2 * (cut.queries.size, cut.keys.size)).T
    last_query = first_query + cut.queries.size - 1
    last_key = first_key + cut.keys.size - 1
    is_full = (last_query < cut.queries.length) & (last_key < cut.keys.length)
    # An offset known at run time moves the window by any amount, so that no block is known to be
    # whole.
    if not offset_is_static:
        return is_full & (spec.left is None) & (spec.right is None)
    if spec.left is not None:
        is_full &= first_key >= last_query + spec.query_offset - spec.left
    if spec.right is not None:
        is_full &= last_key <= first_query + spec.query_offset + spec.right
    return is_full


class _Conditions(NamedTuple):
    """Of each row and pair, `[B, P]`: whether any query may see a key, and whether all see all."""

    may_see: Array
    all_see: Array

    @classmethod
    def of(
        cls, inputs: AttentionInputs, spec: AttentionSpec, cut: Blocking, pairs_P2: np.ndarray
    ) -> "_Conditions | None":
        """Return what documents, key ranges and offsets leave; None where there are none."""
        i, j = pairs_P2[:, 0], pairs_P2[:, 1]
        first = jnp.asarray(j * cut.keys.size)[:, None]
        last = jnp.asarray(np.minimum((j + 1) * cut.keys.size, cut.keys.length) - 1)[:, None]
        row, column = attention_rows(inputs, spec), attention_columns(inputs)
        may, every = [], []
        if row.segments is not None and column.segments is not None:
            q, k = cut.queries.cut(row.segments, axis=1), cut.keys.cut(column.segments, axis=1)
            (q_low, q_high), (k_low, k_high) = block_bounds(q, q != 0), block_bounds(k, k != 0)
            # By ranges of ids: comparing all pairs of tokens is what the walk is to avoid. A
            # block that is visited without need is masked, and right.
            may.append((q_low[i] <= k_high[j]) & (k_low[j] <= q_high[i]))
            # With padding counted, this time: a block that holds some is not whole.
            (q_low, q_high), (k_low, k_high) = block_bounds(q), block_bounds(k)
            same = (q_low[i] == q_high[i]) & (k_low[j] == k_high[j]) & (q_low[i] == k_low[j])
            every.append(same & (q_low[i] != 0))
        if row.k_start is not None and row.k_end is not None:
            start, end = (cut.queries.cut(x, axis=1) for x in (row.k_start, row.k_end))
            low, high = block_bounds(start, start < end)[0], block_bounds(end, start < end)[1]
            may.append((low[i] <= last) & (high[i] > first))
            every.append((block_bounds(start)[1][i] <= first) & (block_bounds(end)[0][i] > last))
        if inputs.query_offset_B is not None:
            low, high = block_bounds(cut.queries.cut(row.position, axis=1))
            if spec.left is not None:
                may.append(last >= low[i] - spec.left)
            if spec.right is not None:
                may.append(first <= high[i] + spec.right)
        if not may:
            return None
        return cls(_all(may), _all(every) if every else jnp.ones((1, len(i)), bool))


def _all(conditions: list[Array]) -> Array:
    """Return where all of `[P, B]` hold, as `[B, P]`."""
    every = conditions[0]
    for condition in conditions[1:]:
        every = every & condition
    return every.T


def _kept(
    pairs_P2: np.ndarray, outer_P: np.ndarray, is_active_BP: Array, is_masked_BP: Array
) -> BlockSchedule:
    """Return the live pairs of each row in their order; of blocks without any, one dead pair."""
    is_start_P = np.diff(outer_P, prepend=-1) != 0
    # Static, since every outer block has a pair.
    num_outer = int(outer_P[-1]) + 1
    active_BO = jnp.zeros((is_active_BP.shape[0], num_outer), bool).at[:, outer_P].max(is_active_BP)
    kept_BP = is_active_BP | (is_start_P[None] & ~active_BO[:, outer_P])
    # Kept pairs go to the front in their order; those behind repeat the last of them, dead.
    order_BP = jnp.argsort(~kept_BP, axis=1, stable=True)
    flags_BP = jnp.where(is_active_BP, LIVE, 0) | jnp.where(is_masked_BP, MASKED, 0)
    codes_BP = jnp.take_along_axis(_places(pairs_P2)[None] | flags_BP, order_BP, axis=1)
    outer_BP = jnp.take_along_axis(jnp.broadcast_to(outer_P, codes_BP.shape), order_BP, axis=1)
    num_B1 = jnp.sum(kept_BP, axis=1, keepdims=True, dtype=jnp.int32)
    place_P = jnp.arange(codes_BP.shape[1], dtype=jnp.int32)[None]
    is_kept_BP = place_P < num_B1
    differs_BP = outer_BP[:, 1:] != outer_BP[:, :-1]
    is_first_BP = jnp.pad(differs_BP, ((0, 0), (1, 0)), constant_values=True)
    is_last_BP = jnp.pad(differs_BP, ((0, 0), (0, 1))) | (place_P == num_B1 - 1)
    codes_BP |= jnp.where(is_first_BP, FIRST, 0) | jnp.where(is_last_BP, LAST, 0)
    end_B1 = jnp.take_along_axis(codes_BP, num_B1 - 1, axis=1)
    # The same blocks as the last visit, so that steps of shorter rows copy nothing; without flags
    # they compute and write nothing either.
    dead_B1 = end_B1 & ~jnp.int32(FIRST | LAST | LIVE | MASKED)
    if codes_BP.size > MAX_SCHEDULE_STEPS:
        raise KernelError(
            f"attention: {codes_BP.shape[0]} rows of {codes_BP.shape[1]} pairs of blocks are on "
            f"one device; tpu_flash_attention holds up to {MAX_SCHEDULE_STEPS} pairs.",
            hint="split the batch over more devices, or in steps that accumulate",
        )
    return BlockSchedule(jnp.where(is_kept_BP, codes_BP, dead_B1), jnp.max(num_B1))


def _places(pairs_P2: np.ndarray) -> np.ndarray:
    """Return the visits of pairs, without flags."""
    i, j = pairs_P2.astype(np.int32).T
    return (i << (_BLOCK_BITS + _FLAG_BITS)) | (j << _FLAG_BITS)
