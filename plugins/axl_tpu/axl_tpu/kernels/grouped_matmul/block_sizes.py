"""How the kernels of the grouped product cut rows and matrices."""

from collections.abc import Iterator
from typing import Literal

import attrs
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas import tpu as pltpu

from axcore.ops import BlockSizeTable, Call, power_of_two
from axcore.plugins import Hardware

LANES, SUBLANES = 128, 16
MIB = 2**20
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
        """Returns blocks for these sizes, without a rest where that is near."""
        return GroupedBlockSizes(
            rows=min(self.rows, -(-num_rows // SUBLANES) * SUBLANES),
            summed=_part(summed, self.summed),
            columns=_part(columns, self.columns),
        )

    def of_gradient(self, num_rows: int, width: int, out_width: int) -> tuple[int, int, int]:
        """Returns the rows of a block, and the sizes of a block of the matrices' gradient."""
        fitted = self.fitted(num_rows, width, out_width)
        return fitted.rows, _part(width, self.columns), fitted.columns

    def compiler_params(
        self, semantics: tuple[Literal["parallel", "arbitrary"], ...]
    ) -> pltpu.CompilerParams:
        """Returns the compiler's parameters of a kernel with these blocks."""
        return pltpu.CompilerParams(dimension_semantics=semantics, vmem_limit_bytes=VMEM_LIMIT)


def _part(size: int, most: int) -> int:
    """Returns all of a width that fits; else a multiple of the lanes that leaves no rest, if any is
    at least half of what fits; else what fits.
    """
    if size <= most:
        return size
    parts = range(most, max(LANES, most // 2) - 1, -LANES)
    return next((part for part in parts if size % part == 0), most)


def matmul(a: Array, b: Array, contracting: tuple[tuple[int, ...], tuple[int, ...]]) -> Array:
    """Returns a product in float32; of float32 to full precision."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return lax.dot_general(
        a, b, (contracting, ((), ())), precision=precision, preferred_element_type=jnp.float32
    )


def _default(call: Call, hardware: Hardware) -> GroupedBlockSizes:
    mean = call.shape("x")[0] // call.shape("w")[0]
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
