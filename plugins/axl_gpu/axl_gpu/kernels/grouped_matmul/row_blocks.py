"""Rows sorted by group, cut into tiles of which each holds rows of one group.

A tile starts at a multiple of 8 rows, as the copies of a GPU do, so the first tile of a group may
start with rows of the group before, and the last may end with rows of the next.

Letters: R rows, E groups, P tiles.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

ALIGNED = 8
"""Rows at whose multiples a tile can start."""


class GroupRows(NamedTuple):
    """Where groups begin and end, each within the rows that are there; int32."""

    start_E: Array
    end_E: Array

    @classmethod
    def of(cls, group_sizes_E: Array, num_rows: int) -> "GroupRows":
        """Returns the rows of each group."""
        end_E = jnp.minimum(jnp.cumsum(group_sizes_E.astype(jnp.int32)), num_rows)
        return cls(jnp.concatenate([jnp.zeros_like(end_E[:1]), end_E[:-1]]), end_E)


class RowTiles(NamedTuple):
    """Which rows each tile holds; int32. Tiles that are not needed hold none.

    Rows after the last group make a group of their own, number E.
    """

    group_P: Array
    first_P: Array
    """Its first row over `ALIGNED`."""
    start_P: Array
    end_P: Array

    @classmethod
    def of(cls, groups: GroupRows, num_rows: int, size: int) -> "RowTiles":
        """Returns tiles of `size` rows."""
        start = jnp.append(groups.start_E, groups.end_E[-1])
        end = jnp.append(groups.end_E, jnp.int32(num_rows))
        first = start // ALIGNED
        num_tiles = jnp.where(end > start, (end - first * ALIGNED + size - 1) // size, 0)
        last_tile = jnp.cumsum(num_tiles)
        tile_P = jnp.arange(max_tiles(num_rows, len(groups.end_E), size), dtype=jnp.int32)
        group_P = jnp.searchsorted(last_tile, tile_P, side="right").astype(jnp.int32)
        group_P = jnp.minimum(group_P, len(groups.end_E))
        within_P = tile_P - (last_tile - num_tiles)[group_P]
        first_P = first[group_P] + within_P * (size // ALIGNED)
        start_P = jnp.maximum(start[group_P], first_P * ALIGNED)
        end_P = jnp.minimum(end[group_P], first_P * ALIGNED + size)
        return cls(group_P, first_P, start_P, jnp.maximum(start_P, end_P))


def max_tiles(num_rows: int, num_groups: int, size: int) -> int:
    """Returns how many tiles there are at most, whatever the groups' sizes."""
    return (num_rows + (ALIGNED - 1) * (num_groups + 1)) // size + num_groups + 1
