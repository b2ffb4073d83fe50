"""The sizes that kernels of matrix products work in."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import attrs
import jax
from jax import Array

from axl_gpu.kernels.matmul.pipeline import Side, Steps

SHARED_BYTES = 226 * 1024
"""What a thread block has on a Hopper, less some for barriers."""


@attrs.frozen(kw_only=True)
class MatmulBlockSizes:
    """The sizes that a kernel works in.

    Args:
        rows: Rows of a tile of the result: 64 or 128.
        columns: Columns of it, of each warp group: 64 or 128.
        warp_groups: How many multiply, each for columns of its own.
        depth: What is summed at once.
        num_ahead: How many such tiles of both operands are in shared memory.
        band: Rows of tiles that are worked on together, so that what they read is in the cache.
    """

    rows: int = 128
    columns: int = 128
    warp_groups: int = 2
    depth: int = 64
    num_ahead: int = 3
    band: int = 16

    @property
    def all_columns(self) -> int:
        """Columns of all warp groups."""
        return self.columns * self.warp_groups

    def shared_bytes(self, itemsize: int, result_itemsize: int) -> int:
        """Return what operands and results of so many bytes a number take of shared memory."""
        block_sizes = self.num_ahead * self.depth * (self.rows + self.all_columns)
        return itemsize * block_sizes + result_itemsize * self.rows * self.all_columns

    def within(self, *, columns: int, rows: int = 0) -> "MatmulBlockSizes":
        """Return sizes that divide those of a result; rows need not where not given."""
        # One group of wide tiles before two of narrow ones: a wide product reads the left tile
        # from shared memory once for twice the columns.
        sizes = [(self.columns, self.warp_groups), (self.columns, 1), (64, 2), (64, 1)]
        each, warp_groups = next(one for one in sizes if columns % math.prod(one) == 0)
        whole = 64 if rows % self.rows else self.rows
        return attrs.evolve(self, rows=whole, columns=each, warp_groups=warp_groups)

    def side(
        self, tile: Any, dtype: Any, *, size: int, is_rhs: bool = False, is_transposed: bool = False
    ) -> Side:
        """Return one side of products, whose tiles have so many rows, or columns."""
        shape = (self.depth, size) if is_rhs != is_transposed else (size, self.depth)
        return Side(tile=tile, shape=shape, dtype=dtype, is_transposed=is_transposed)

    def steps(self, count: int | Array, *, lhs: Side, rhs: Side, dtype: Any) -> Steps:
        """Return so many pairs of tiles."""
        return Steps(
            lhs=lhs,
            rhs=rhs,
            num_steps=count,
            num_groups=self.warp_groups,
            num_ahead=self.num_ahead,
            staged=jax.ShapeDtypeStruct((self.rows, self.columns), dtype),
        )


def all_block_sizes(
    *, depth: int, itemsize: int, result_itemsize: int
) -> Iterator[MatmulBlockSizes]:
    """Yield what fits the shared memory of a Hopper."""
    choices = itertools.product((64, 128), (64, 128), (1, 2), (2, 3, 4, 6), (8, 16))
    for rows, columns, warp_groups, num_ahead, band in choices:
        block_sizes = MatmulBlockSizes(
            rows=rows,
            columns=columns,
            warp_groups=warp_groups,
            depth=depth,
            num_ahead=num_ahead,
            band=band,
        )
        if block_sizes.shared_bytes(itemsize, result_itemsize) <= SHARED_BYTES:
            yield block_sizes
