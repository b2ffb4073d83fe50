"""How the kernels of the grouped product cut rows and matrices, and which blocks they visit.

Rows stay in their order: a block that holds rows of several groups is visited once for each.

Letters: R rows, E groups, C rows of a block, P visits.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import attrs
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas import tpu as pltpu

from axcore.ops import BlockSizeTable, Call, power_of_two
from axcore.plugins import Hardware

LANES, SUBLANES = 128, 16
MIB = 2**20
# Less than the 64 MiB of a v5p's core, which leaves room for what the compiler keeps there. v4
# has 16, so that the kernels are not for it.
VMEM_LIMIT = 56 * MIB


@attrs.frozen
class GroupedBlockSizes:
    """Block sizes.

    Args:
        rows: Rows of a block.
        summed: Of the width that is summed over; blocks of a gradient are `columns` wide in both.
        columns: Of the result's width.
    """

    rows: int
    summed: int
    columns: int

    def fitted(self, num_rows: int, summed: int, columns: int) -> "GroupedBlockSizes":
        """Return blocks for these sizes, without a rest where that is near."""
        return GroupedBlockSizes(
            rows=min(self.rows, -(-num_rows // SUBLANES) * SUBLANES),
            summed=_part(summed, self.summed),
            columns=_part(columns, self.columns),
        )

    def of_gradient(self, num_rows: int, width: int, out_width: int) -> tuple[int, int, int]:
        """Return the rows of a block, and the sizes of a block of the matrices' gradient."""
        fitted = self.fitted(num_rows, width, out_width)
        return fitted.rows, _part(width, self.columns), fitted.columns

    def compiler_params(
        self, semantics: tuple[Literal["parallel", "arbitrary"], ...]
    ) -> pltpu.CompilerParams:
        """Return the compiler's parameters of a kernel with these blocks."""
        return pltpu.CompilerParams(dimension_semantics=semantics, vmem_limit_bytes=VMEM_LIMIT)


def _part(size: int, most: int) -> int:
    """Return all of a width that fits; else a multiple of the lanes that leaves no rest, if any is
    at least half of what fits; else what fits.
    """
    if size <= most:
        return size
    # A rest is computed as a whole block, most of it for nothing; somewhat smaller blocks cost
    # less.
    parts = range(most, max(LANES, most // 2) - 1, -LANES)
    return next((part for part in parts if size % part == 0), most)


def matmul(a: Array, b: Array, contracting: tuple[tuple[int, ...], tuple[int, ...]]) -> Array:
    """Return a product in float32; of float32 to full precision."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return lax.dot_general(
        a, b, (contracting, ((), ())), precision=precision, preferred_element_type=jnp.float32
    )


def _default(call: Call, hardware: Hardware) -> GroupedBlockSizes:
    mean = call.shape("x")[0] // call.shape("w")[0]
    # A block is visited once for each group in it: with many rows a block and few a group, most
    # of each visit's product is dropped.
    rows = next((rows for rows in (512, 256) if rows <= 2 * mean), 128)
    is_wide = call.dtype("x") == "float32"
    return GroupedBlockSizes(rows=rows, summed=2048 if is_wide else 4096, columns=1024)


def _candidates(call: Call, hardware: Hardware) -> Iterator[GroupedBlockSizes]:
    largest = _default(call, hardware)
    for rows in (128, 256, 512):
        for parts in (1, 2, 4):
            yield GroupedBlockSizes(rows, largest.summed // parts, 1024)
            yield GroupedBlockSizes(rows, largest.summed // parts, 512)


BLOCK_SIZES = BlockSizeTable(
    kernel="grouped_matmul/tpu_grouped_matmul",
    package=__package__,
    default=_default,
    candidates=_candidates,
    bucket=lambda call: {
        "rows_of_a_group": power_of_two(call.shape("x")[0] // call.shape("w")[0]),
        "width": call.shape("w")[1],
        "out_width": call.shape("w")[2],
        "dtype": call.dtype("x"),
    },
)


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
        """Return visits of every block, by each group that has rows in it, or by group E."""
        start_E, end_E = _bounds(group_sizes_E, num_rows)
        return cls._of(start_E, end_E, (end_E > start_E).astype(jnp.int32), num_rows, block)

    @classmethod
    def of_groups(cls, group_sizes_E: Array, num_rows: int, block: int) -> "GroupBlockSchedule":
        """Return visits by every group of the blocks that hold its rows, at least one."""
        start_E, end_E = _bounds(group_sizes_E, num_rows)
        least_E = jnp.ones_like(start_E).at[-1].set(0)
        return cls._of(start_E, end_E, least_E, num_rows, block)

    @classmethod
    def _of(
        cls, start_E: Array, end_E: Array, least_E: Array, num_rows: int, block: int
    ) -> "GroupBlockSchedule":
        num_blocks = -(-num_rows // block)
        num_groups = start_E.shape[0]
        # An empty group at the very end begins past the last block.
        first_E = jnp.minimum(start_E // block, num_blocks - 1)
        spanned_E = jnp.where(end_E > start_E, (end_E + block - 1) // block - first_E, 0)
        spanned_E = jnp.where(least_E > 0, jnp.maximum(spanned_E, 1), 0)
        until_E = jnp.cumsum(spanned_E)
        num_schedule_steps = num_blocks + num_groups - 1
        # Sizes are known at run time, so the grid has as many steps as any sizes need; those left
        # over repeat the last visit, whose blocks are not copied again.
        visit_P = jnp.minimum(jnp.arange(num_schedule_steps, dtype=jnp.int32), until_E[-1] - 1)
        group_P = jnp.searchsorted(until_E, visit_P, side="right").astype(jnp.int32)
        block_P = first_E[group_P] + visit_P - (until_E - spanned_E)[group_P]
        is_active_P = jnp.arange(num_schedule_steps, dtype=jnp.int32) < until_E[-1]
        return cls(group_P, block_P, is_active_P.astype(jnp.int32), start_E, end_E)


def _bounds(group_sizes_E: Array, num_rows: int) -> tuple[Array, Array]:
    """Return where groups start and end, and the rows after the last group."""
    end_E = jnp.minimum(jnp.cumsum(group_sizes_E.astype(jnp.int32)), num_rows)
    end_E = jnp.concatenate([end_E, jnp.full((1,), num_rows, jnp.int32)])
    return jnp.concatenate([jnp.zeros((1,), jnp.int32), end_E[:-1]]), end_E
