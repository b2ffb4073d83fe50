# ruff: noqa: N815 - fields carry shape letters
"""Rows sorted by group, laid out in blocks of which each holds rows of one group only.

Letters: R rows, E groups, D width, P blocks, C rows of a block.
"""

import attrs
import jax.numpy as jnp
from jax import Array

MIN_BLOCK, MAX_BLOCK = 8, 256


def block_size(num_rows: int, num_groups: int) -> int:
    """Return the rows of a block: a power of two near the mean size of a group."""
    mean = max(1, num_rows // max(1, num_groups))
    return min(MAX_BLOCK, max(MIN_BLOCK, 1 << (mean - 1).bit_length()))


@attrs.frozen(eq=False)
class GroupLayout:
    """Where rows are once groups are padded to whole blocks.

    There are at most `R / C + E` blocks of C rows, and C is chosen near `R / E`, so there are never
    more than about 2 R places whatever the number of groups.

    Args:
        num_groups: E.
        group_P: Group of each block.
        group_R: Group of each row; E for rows of no group.
        row_PC: Row at each place of a block; R where there is none.
        place_R: Place of each row, counted over all blocks; past the end for rows of no group.
    """

    num_groups: int
    group_P: Array
    group_R: Array
    row_PC: Array
    place_R: Array

    @classmethod
    def of(cls, group_sizes_E: Array, num_rows: int) -> "GroupLayout":
        """Return the layout of so many rows, of which rows after the last group are of none."""
        num_groups = group_sizes_E.shape[0]
        size = block_size(num_rows, num_groups)
        num_blocks = -(-num_rows // size) + num_groups
        ends_E = jnp.minimum(jnp.cumsum(group_sizes_E.astype(jnp.int32)), num_rows)
        starts_E = _exclusive(ends_E)
        last_block_E = jnp.cumsum((ends_E - starts_E + size - 1) // size)
        first_block_E = _exclusive(last_block_E)

        block_P = jnp.arange(num_blocks, dtype=jnp.int32)
        group_P = jnp.minimum(_group_of(block_P, last_block_E), num_groups - 1)
        start_P = starts_E[group_P] + (block_P - first_block_E[group_P]) * size
        row_PC = start_P[:, None] + jnp.arange(size, dtype=jnp.int32)[None, :]

        row_R = jnp.arange(num_rows, dtype=jnp.int32)
        group_R = _group_of(row_R, ends_E)
        known_R = jnp.minimum(group_R, num_groups - 1)
        place_R = first_block_E[known_R] * size + row_R - starts_E[known_R]
        return cls(
            num_groups=num_groups,
            group_P=group_P,
            group_R=group_R,
            row_PC=jnp.where(row_PC < ends_E[group_P][:, None], row_PC, num_rows),
            place_R=jnp.where(group_R < num_groups, place_R, num_blocks * size),
        )

    def spread(self, x_RD: Array) -> Array:
        """Return rows at their places in blocks `[P, C, D]`, zeros between."""
        return jnp.take(x_RD, self.row_PC, axis=0, mode="fill", fill_value=0)

    def collect(self, y_PCF: Array) -> Array:
        """Return `y_RF` from blocks; zeros for rows of no group."""
        y_places = y_PCF.reshape(-1, y_PCF.shape[-1])
        return jnp.take(y_places, self.place_R, axis=0, mode="fill", fill_value=0)


def _exclusive(ends_E: Array) -> Array:
    """Return where each begins, from where each ends."""
    return jnp.concatenate([jnp.zeros((1,), ends_E.dtype), ends_E[:-1]])


def _group_of(index: Array, ends_E: Array) -> Array:
    return jnp.searchsorted(ends_E, index, side="right").astype(jnp.int32)
