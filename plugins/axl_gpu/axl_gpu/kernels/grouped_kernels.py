"""The two Hopper kernels of the grouped matrix product: of rows, and of gradients of matrices.

Letters: R rows, E groups, D width of what is given, F width of the output, P tiles of rows.
"""

import math
from typing import Any

import attrs
import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from axl_gpu.kernels.grouped_tiles import ALIGNED, GroupRows, RowTiles
from axl_gpu.kernels.tile_products import (
    TUNED,
    Operand,
    Reference,
    Variant,
    accumulate,
    launch,
    store_tile,
)


@attrs.frozen(kw_only=True)
class GroupedTiles:
    """The sizes that a kernel works in.

    Args:
        rows: Rows of a tile of the result: 64 or 128.
        columns: Columns of it: 64 or 128.
        depth: What is summed at once.
        steps_ahead: How many such tiles of both operands are in shared memory.
        band: Rows of tiles that are worked on together, so that what they read is in the cache.
    """

    rows: int = 128
    columns: int = 128
    depth: int = 64
    steps_ahead: int = 4
    band: int = 16

    def within(self, *, columns: int, rows: int = 0) -> "GroupedTiles":
        """Returns sizes that divide those of a result; rows need not where not given."""
        return attrs.evolve(
            self,
            rows=64 if rows % self.rows else self.rows,
            columns=64 if columns % self.columns else self.columns,
        )


def rows_of_groups(
    x_RD: Array,
    w: Array,
    groups: GroupRows,
    *,
    is_turned: bool,
    tiles: GroupedTiles,
    variant: Variant = TUNED,
) -> Array:
    """Returns `y_RF`, each row times its group's matrix; zeros for rows of no group.

    Sums in float32, and rounds to x's dtype. Columns of a tile are of one group's matrix, read
    once for each tile of rows.

    Args:
        x_RD: A multiple of 8 rows, sorted by group; D a multiple of `tiles.depth`.
        w: `[E, D, F]`, or `[E, F, D]` where turned; F a multiple of `tiles.columns`.
        groups: Rows of each group.
        is_turned: Which of the two.
        tiles: Sizes.
        variant: The form of the kernel.
    """
    num_rows, width = x_RD.shape
    out_width = w.shape[1 if is_turned else 2]
    num_groups = w.shape[0]
    w, is_turned = variant.stored(w, is_turned=is_turned)
    layout = RowTiles.of(groups, num_rows, tiles.rows)
    shape = (layout.group_P.shape[0], out_width // tiles.columns)

    def body(group: Any, first: Any, start: Any, end: Any, x: Any, w: Any, y: Any) -> None:
        p, column = _place(lax.axis_index("tile"), shape, tiles)
        columns = pl.ds(column * tiles.columns, tiles.columns)

        @pl.when(end[p] > start[p])
        def _() -> None:
            first_row = first[p] * ALIGNED
            matrix = w.at[jnp.minimum(group[p], num_groups - 1)]

            def products(total: Reference) -> Array:
                @pl.when(group[p] < num_groups)
                def _() -> None:
                    accumulate(
                        total,
                        Operand(ref=x.at[pl.ds(first_row, tiles.rows), :], size=tiles.rows, axis=1),
                        Operand(
                            ref=matrix.at[columns, :] if is_turned else matrix.at[:, columns],
                            size=tiles.columns,
                            axis=1 if is_turned else 0,
                        ),
                        num_steps=width // tiles.depth,
                        depth=tiles.depth,
                        steps_ahead=tiles.steps_ahead,
                        variant=variant,
                    )

                return total[...]

            y_tile = pl.run_scoped(products, plgpu.ACC((tiles.rows, tiles.columns)))
            rows = (start[p] - first_row, end[p] - start[p])
            _store_some(y_tile.astype(y.dtype), rows, y.at[:, columns], start[p])

    grid = {"tile": math.prod(shape)}
    result = jax.ShapeDtypeStruct((num_rows, out_width), x_RD.dtype)
    y_RF: Array = launch(body, result, grid=grid, variant=variant)(*layout, x_RD, w)
    return y_RF


def matrices_of_groups(
    x_RD: Array,
    dy_RF: Array,
    groups: GroupRows,
    *,
    tiles: GroupedTiles,
    variant: Variant = TUNED,
) -> Array:
    """Returns `dw_EDF`, for each group `x^T dy` over its rows; zeros for a group without any.

    Sums in float32, and rounds to x's dtype. What stands in rows of other groups has no part in
    it, not even NaN.

    Args:
        x_RD: A multiple of 8 rows, sorted by group; D a multiple of `tiles.rows`.
        dy_RF: F a multiple of `tiles.columns`.
        groups: Rows of each group.
        tiles: Sizes.
        variant: The form of the kernel.
    """
    (num_rows, width), out_width = x_RD.shape, dy_RF.shape[1]
    x, is_turned = variant.stored(x_RD, is_turned=True)
    shape = (width // tiles.rows, out_width // tiles.columns)

    def body(starts: Any, ends: Any, x: Any, dy: Any, dw: Any) -> None:
        group = lax.axis_index("group")
        row, column = _place(lax.axis_index("tile"), shape, tiles)
        inputs, columns = (
            pl.ds(row * tiles.rows, tiles.rows),
            pl.ds(column * tiles.columns, tiles.columns),
        )
        start, end = starts[group], ends[group]
        first_row = lax.div(start, jnp.int32(ALIGNED)) * ALIGNED
        rows = pl.ds(first_row, num_rows)
        lhs = Operand(
            ref=x.at[rows, inputs] if is_turned else x.at[inputs, rows],
            size=tiles.rows,
            axis=0 if is_turned else 1,
        )
        rhs = Operand(ref=dy.at[rows, columns], size=tiles.columns, axis=0)

        def without_other_groups(k: Array, x_tile: Reference, dy_tile: Reference) -> None:
            first = first_row + k * tiles.depth
            bounds = (start - first, end - first)

            @pl.when((bounds[0] > 0) | (bounds[1] < tiles.depth))
            def _() -> None:
                _keep(x_tile, lhs.axis, bounds, variant)
                _keep(dy_tile, rhs.axis, bounds, variant)
                plgpu.commit_smem()

        def products(total: Reference) -> Array:
            @pl.when(end > start)
            def _() -> None:
                accumulate(
                    total,
                    lhs,
                    rhs,
                    num_steps=lax.div(end - first_row + (tiles.depth - 1), jnp.int32(tiles.depth)),
                    depth=tiles.depth,
                    steps_ahead=tiles.steps_ahead,
                    variant=variant,
                    prepare=without_other_groups,
                )

            return total[...]

        dw_tile = pl.run_scoped(products, plgpu.ACC((tiles.rows, tiles.columns)))
        store_tile(dw_tile, dw.at[group, inputs, columns])

    num_groups = groups.end_E.shape[0]
    grid = {"group": num_groups, "tile": math.prod(shape)}
    result = jax.ShapeDtypeStruct((num_groups, width, out_width), x_RD.dtype)
    dw_EDF: Array = launch(body, result, grid=grid, variant=variant)(*groups, x, dy_RF)
    return dw_EDF


def _place(index: Array, shape: tuple[int, int], tiles: GroupedTiles) -> tuple[Array, Array]:
    """Returns the row and the column of tiles that the n-th thread block works on."""
    num_rows, num_columns = shape
    band = lax.div(index, jnp.int32(tiles.band * num_columns))
    first = band * tiles.band
    height = jnp.minimum(num_rows - first, tiles.band)
    within = index - first * num_columns
    return first + lax.rem(within, height), lax.div(within, height)


def _keep(tile: Reference, axis: int, bounds: tuple[Array, Array], variant: Variant) -> None:
    """Makes zeros of all places along an axis outside of the bounds."""
    values = tile[...]
    place = variant.index(tile.shape, axis)
    is_inside = (place >= bounds[0]) & (place < bounds[1])
    tile[...] = jnp.where(is_inside, values, jnp.zeros((), values.dtype))


def _store_some(tile: Array, rows: tuple[Array, Array], target: Reference, first: Array) -> None:
    """Writes some rows of a tile to the rows of a target from `first` on.

    A copy has a size that is known beforehand, so there is one for every power of two.

    Args:
        tile: All rows.
        rows: The first of them, and how many.
        target: `[R, columns]` in the memory of the GPU.
        first: The row that the first goes to.
    """
    offset, num_rows = rows

    def copy(staged: Reference) -> None:
        staged[...] = tile
        plgpu.commit_smem()
        done = jnp.int32(0)
        size = 1 << (tile.shape[0].bit_length() - 1)
        while size:

            @pl.when(num_rows & size != 0)
            def _(done: Array = done, size: int = size) -> None:
                plgpu.copy_smem_to_gmem(
                    staged.at[pl.ds(offset + done, size)],
                    target.at[pl.ds(first + done, size)],
                )

            done += num_rows & size
            size //= 2
        plgpu.wait_smem_to_gmem(0)

    pl.run_scoped(copy, plgpu.SMEM(tile.shape, tile.dtype))
