"""Which blocks of rows a grouped product visits, for which groups.

Rows stay in their order: a block that holds rows of several groups is visited once for each.

Letters: R rows, E groups, C rows of a block, P visits.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class GroupBlockSchedule(NamedTuple):
    """Steps in the order of rows, as scalars for a kernel; int32.

    Where there are fewer than P, the last one is repeated, and those are not live.
    """

    group_P: Array
    """E is the group of rows after the last group."""
    block_P: Array
    is_active_P: Array
    start_E: Array
    """The first row of each group, and of the rows after the last; `[E + 1]`."""
    end_E: Array

    @classmethod
    def of_blocks(cls, group_sizes_E: Array, num_rows: int, block: int) -> "GroupBlockSchedule":
        """Returns visits of every block, by each group that has rows in it, or by group E."""
        start_E, end_E = _bounds(group_sizes_E, num_rows)
        return cls._of(start_E, end_E, (end_E > start_E).astype(jnp.int32), num_rows, block)

    @classmethod
    def of_groups(cls, group_sizes_E: Array, num_rows: int, block: int) -> "GroupBlockSchedule":
        """Returns visits by every group of the blocks that hold its rows, at least one."""
        start_E, end_E = _bounds(group_sizes_E, num_rows)
        least_E = jnp.ones_like(start_E).at[-1].set(0)
        return cls._of(start_E, end_E, least_E, num_rows, block)

    @classmethod
    def _of(
        cls, start_E: Array, end_E: Array, least_E: Array, num_rows: int, block: int
    ) -> "GroupBlockSchedule":
        num_blocks = -(-num_rows // block)
        num_groups = start_E.shape[0]
        first_E = jnp.minimum(start_E // block, num_blocks - 1)
        spanned_E = jnp.where(end_E > start_E, (end_E + block - 1) // block - first_E, 0)
        spanned_E = jnp.where(least_E > 0, jnp.maximum(spanned_E, 1), 0)
        until_E = jnp.cumsum(spanned_E)
        num_schedule_steps = num_blocks + num_groups - 1
        visit_P = jnp.minimum(jnp.arange(num_schedule_steps, dtype=jnp.int32), until_E[-1] - 1)
        group_P = jnp.searchsorted(until_E, visit_P, side="right").astype(jnp.int32)
        block_P = first_E[group_P] + visit_P - (until_E - spanned_E)[group_P]
        is_active_P = jnp.arange(num_schedule_steps, dtype=jnp.int32) < until_E[-1]
        return cls(group_P, block_P, is_active_P.astype(jnp.int32), start_E, end_E)


def _bounds(group_sizes_E: Array, num_rows: int) -> tuple[Array, Array]:
    """Returns where groups start and end, and the rows after the last group."""
    end_E = jnp.minimum(jnp.cumsum(group_sizes_E.astype(jnp.int32)), num_rows)
    end_E = jnp.concatenate([end_E, jnp.full((1,), num_rows, jnp.int32)])
    return jnp.concatenate([jnp.zeros((1,), jnp.int32), end_E[:-1]]), end_E
