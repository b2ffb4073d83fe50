"""The two Hopper kernels of the grouped matrix product: of rows, and of gradients of matrices.

Rows are cut into tiles of which each holds rows of one group. A tile starts at a multiple of 8
rows, as the copies of a GPU do, so the first tile of a group may start with rows of the group
before, and the last may end with rows of the next.

Letters: R rows, E groups, D width of what is given, F width of the output, P tiles of rows.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from axl_gpu.kernels.matmul.block_sizes import MatmulBlockSizes
from axl_gpu.kernels.matmul.pipeline import (
    TUNED,
    Multiply,
    Reference,
    Variant,
    in_warp_groups,
    launch,
    place,
)

# Shared memory is tiled by 8 rows, and the compiler takes a copy's start only as a multiple of
# them.
ALIGNED = 8
"""Rows at whose multiples a tile can start."""


class GroupRows(NamedTuple):
    """Where groups begin and end, each within the rows that are there; int32."""

    start_E: Array
    end_E: Array

    @classmethod
    def of(cls, group_sizes_E: Array, num_rows: int) -> "GroupRows":
        """Return the rows of each group."""
        # Sizes may add up to more than there are rows, where a device holds a part of the rows of
        # all groups.
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
        """Return tiles of `size` rows."""
        # Rows of no group must be written, too, with zeros: no output of a kernel begins with
        # any.
        start = jnp.append(groups.start_E, groups.end_E[-1])
        end = jnp.append(groups.end_E, jnp.int32(num_rows))
        first = start // ALIGNED
        num_tiles = jnp.where(end > start, (end - first * ALIGNED + size - 1) // size, 0)
        last_tile = jnp.cumsum(num_tiles)
        # A static number of tiles, since sizes are known only at run time; those that are left
        # over are skipped by their thread blocks. Nothing is padded by group, so that it is
        # little more than the rows fill.
        tile_P = jnp.arange(max_tiles(num_rows, len(groups.end_E), size), dtype=jnp.int32)
        group_P = jnp.searchsorted(last_tile, tile_P, side="right").astype(jnp.int32)
        group_P = jnp.minimum(group_P, len(groups.end_E))
        within_P = tile_P - (last_tile - num_tiles)[group_P]
        first_P = first[group_P] + within_P * (size // ALIGNED)
        start_P = jnp.maximum(start[group_P], first_P * ALIGNED)
        end_P = jnp.minimum(end[group_P], first_P * ALIGNED + size)
        return cls(group_P, first_P, start_P, jnp.maximum(start_P, end_P))


def max_tiles(num_rows: int, num_groups: int, size: int) -> int:
    """Return how many tiles there are at most, whatever the groups' sizes."""
    # Each group, and the rows of none, may begin up to 7 rows early, and end within a tile.
    return (num_rows + (ALIGNED - 1) * (num_groups + 1)) // size + num_groups + 1


def rows_of_groups(
    x_RD: Array,
    w: Array,
    groups: GroupRows,
    *,
    is_transposed: bool,
    block_sizes: MatmulBlockSizes,
    variant: Variant = TUNED,
) -> Array:
    """Return `y_RF`, each row times its group's matrix; zeros for rows of no group.

    Sums in float32, and rounds to x's dtype.

    Args:
        x_RD: A multiple of 8 rows, sorted by group; D a multiple of `block_sizes.depth`.
        w: `[E, D, F]`, or `[E, F, D]` where transposed; F a multiple of all warp groups' columns.
        groups: Rows of each group.
        is_transposed: Which of the two.
        block_sizes: Sizes.
        variant: The form of the kernel.
    """
    num_rows, width = x_RD.shape
    out_width = w.shape[1 if is_transposed else 2]
    num_groups = w.shape[0]
    w, is_transposed = variant.stored(w, is_transposed=is_transposed)
    layout = RowTiles.of(groups, num_rows, block_sizes.rows)
    shape = (layout.group_P.shape[0], out_width // block_sizes.all_columns)

    def body(group: Any, first: Any, start: Any, end: Any, x: Any, w: Any, y: Any) -> None:
        p, column = place(lax.axis_index("tile"), shape, block_sizes.band)
        first_row = first[p] * ALIGNED
        # No product for rows of no group: the accumulator's zeros are the result.
        count = jnp.where(group[p] < num_groups, width // block_sizes.depth, 0)
        # Group E has no matrix. Nothing is read of it, but the index is computed.
        matrix = w.at[jnp.minimum(group[p], num_groups - 1)]

        def columns(warp_group: Any) -> Any:
            return pl.ds(
                column * block_sizes.all_columns + warp_group * block_sizes.columns,
                block_sizes.columns,
            )

        def rhs_tile(step: Array, warp_group: Any) -> Reference:
            depth = pl.ds(step * block_sizes.depth, block_sizes.depth)
            at = (columns(warp_group), depth) if is_transposed else (depth, columns(warp_group))
            return matrix.at[at]

        def lhs_tile(step: Array, warp_group: Any) -> Reference:
            return x.at[
                pl.ds(first_row, block_sizes.rows),
                pl.ds(step * block_sizes.depth, block_sizes.depth),
            ]

        def work(warp_group: Any, multiply: Multiply, staged: Reference) -> None:
            def products(total: Reference) -> Array:
                multiply(total, first=0, count=count)
                return total[...]

            tile = pl.run_scoped(products, plgpu.ACC((block_sizes.rows, block_sizes.columns)))
            staged[...] = tile.astype(y.dtype)
            # Rows of neighbouring groups in this tile are theirs: their own tiles write them,
            # maybe at the same time. So only the group's own rows leave, and nothing is added up
            # between tiles.
            rows = (start[p] - first_row, end[p] - start[p])
            _store_some(staged, rows, y.at[:, columns(warp_group)], start[p])

        @pl.when(end[p] > start[p])
        def _() -> None:
            sides = {
                "lhs": block_sizes.side(lhs_tile, x.dtype, size=block_sizes.rows),
                "rhs": block_sizes.side(
                    rhs_tile,
                    w.dtype,
                    size=block_sizes.columns,
                    is_rhs=True,
                    is_transposed=is_transposed,
                ),
            }
            in_warp_groups(work, block_sizes.steps(count, **sides, dtype=y.dtype), variant)

    run = launch(
        body,
        jax.ShapeDtypeStruct((num_rows, out_width), x_RD.dtype),
        name="grouped_rows_transposed" if is_transposed else "grouped_rows",
        grid={"tile": math.prod(shape)},
        num_groups=block_sizes.warp_groups,
        variant=variant,
    )
    y_RF: Array = run(*layout, x_RD, w)
    return y_RF


def matrices_of_groups(
    x_RD: Array,
    dy_RF: Array,
    groups: GroupRows,
    *,
    block_sizes: MatmulBlockSizes,
    variant: Variant = TUNED,
) -> Array:
    """Return `dw_EDF`, for each group `x^T dy` over its rows; zeros for a group without any.

    Sums in float32, and rounds to x's dtype. What is in rows of other groups has no part in
    it, not even NaN.

    Args:
        x_RD: A multiple of 8 rows, sorted by group; D a multiple of `block_sizes.rows`.
        dy_RF: F a multiple of the columns of all warp groups.
        groups: Rows of each group.
        block_sizes: Sizes.
        variant: The form of the kernel.
    """
    width, out_width, num_groups = x_RD.shape[1], dy_RF.shape[1], groups.end_E.shape[0]
    x, is_transposed = variant.stored(x_RD, is_transposed=True)
    shape = (width // block_sizes.rows, out_width // block_sizes.all_columns)

    def body(starts: Any, ends: Any, x: Any, dy: Any, dw: Any) -> None:
        group = lax.axis_index("group")
        row, column = place(lax.axis_index("tile"), shape, block_sizes.band)
        inputs = pl.ds(row * block_sizes.rows, block_sizes.rows)
        start, end = starts[group], ends[group]
        first_row = lax.div(start, jnp.int32(ALIGNED)) * ALIGNED
        steps = lax.div(end - first_row + (block_sizes.depth - 1), jnp.int32(block_sizes.depth))
        count = jnp.where(end > start, steps, 0)

        def columns(warp_group: Any) -> Any:
            return pl.ds(
                column * block_sizes.all_columns + warp_group * block_sizes.columns,
                block_sizes.columns,
            )

        def rows(step: Array) -> Any:
            return pl.ds(first_row + step * block_sizes.depth, block_sizes.depth)

        def x_tile(step: Array, warp_group: Any) -> Reference:
            return x.at[rows(step), inputs] if is_transposed else x.at[inputs, rows(step)]

        def dy_tile(step: Array, warp_group: Any) -> Reference:
            return dy.at[rows(step), columns(warp_group)]

        def without_other_groups(step: Array, x_tile: Reference, dy_tile: Reference) -> None:
            first = first_row + step * block_sizes.depth
            bounds = (start - first, end - first)

            # Only in the first and the last step of a group; others are whole, and pay no pass
            # through registers.
            @pl.when((bounds[0] > 0) | (bounds[1] < block_sizes.depth))
            def _() -> None:
                # Both sides: zeros on one alone would leave 0 * NaN where the other group's rows
                # hold NaN.
                _keep(x_tile, 0 if is_transposed else 1, bounds, variant)
                _keep(dy_tile, 0, bounds, variant)
                plgpu.commit_smem()

        def work(warp_group: Any, multiply: Multiply, staged: Reference) -> None:
            def products(total: Reference) -> Array:
                multiply(total, first=0, count=count, prepare=without_other_groups)
                return total[...]

            tile = pl.run_scoped(products, plgpu.ACC((block_sizes.rows, block_sizes.columns)))
            staged[...] = tile.astype(dw.dtype)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(staged, dw.at[group, inputs, columns(warp_group)])
            plgpu.wait_smem_to_gmem(0)

        sides = {
            "lhs": block_sizes.side(
                x_tile, x.dtype, size=block_sizes.rows, is_transposed=is_transposed
            ),
            "rhs": block_sizes.side(dy_tile, dy.dtype, size=block_sizes.columns, is_rhs=True),
        }
        in_warp_groups(work, block_sizes.steps(count, **sides, dtype=dw.dtype), variant)

    run = launch(
        body,
        jax.ShapeDtypeStruct((num_groups, width, out_width), x_RD.dtype),
        name="grouped_matrices",
        grid={"group": num_groups, "tile": math.prod(shape)},
        num_groups=block_sizes.warp_groups,
        variant=variant,
    )
    dw_EDF: Array = run(*groups, x, dy_RF)
    return dw_EDF


def _keep(tile: Reference, axis: int, bounds: tuple[Array, Array], variant: Variant) -> None:
    """Make zeros of all places along an axis outside of the bounds."""
    values = tile[...]
    place = variant.index(tile.shape, axis)
    is_inside = (place >= bounds[0]) & (place < bounds[1])
    tile[...] = jnp.where(is_inside, values, jnp.zeros((), values.dtype))


def _store_some(
    staged: Reference, rows: tuple[Array, Array], target: Reference, first: Array
) -> None:
    """Copy some rows of a tile to the rows of a target from `first` on.

    A copy has a static size, so there is one for every power of two.

    Args:
        staged: All rows, in shared memory.
        rows: The first of them, and how many.
        target: `[R, columns]` in the memory of the GPU.
        first: The row that the first goes to.
    """
    offset, num_rows = rows
    plgpu.commit_smem()
    done = jnp.int32(0)
    # Largest first, so that each begins where the last one ended; by bits of the count none
    # overlaps.
    size = 1 << (staged.shape[0].bit_length() - 1)
    while size:

        @pl.when(num_rows & size != 0)
        def _(done: Array = done, size: int = size) -> None:
            plgpu.copy_smem_to_gmem(
                staged.at[pl.ds(offset + done, size)], target.at[pl.ds(first + done, size)]
            )

        done += num_rows & size
        size //= 2
    plgpu.wait_smem_to_gmem(0)
