# ruff: noqa: N815 - fields carry shape letters
"""The grouped matrix product in plain JAX: a loop over blocks of rows of one group each.

A group's last block reaches into the rows after it; those are taken as zeros, and what is written
for them is overwritten by their own block, which comes later. The loop ends with the last row that
has a group, so that rows of none cost nothing. A block has at most as many rows as a group has in
the mean, so that the work is that of at most about 2 R rows whatever the number of groups.

Letters: R rows, E groups, D input width, F output width, P blocks, C rows of a block.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import attrs
import jax
import jax.numpy as jnp
from jax import Array, lax

from axcore.ops.grouped_layout import block_size
from axcore.ops.grouped_matmul import grouped_matmul_call
from axcore.ops.plan import choose_tiles
from axcore.ops.run_time import loop_between
from axcore.ops.tiles import TileTable, power_of_two

T = TypeVar("T")


@attrs.frozen
class RowTiles:
    """At most so many rows in a block."""

    max_rows: int


TILES = TileTable(
    kernel="grouped_matmul/portable",
    package="axcore.ops",
    default=lambda call, hardware: RowTiles(128),
    candidates=lambda call, hardware: map(RowTiles, (32, 64, 128, 256)),
    bucket=lambda call: {
        "dtype": call.dtype("x"),
        "width": power_of_two(call.shape("w")[1]),
        "out_width": power_of_two(call.shape("w")[2]),
    },
)


def grouped_matmul_portable(x_RD: Array, w_EDF: Array, group_sizes_E: Array) -> Array:
    """Return `y_RF`; see `grouped_matmul` for the meaning."""
    tiles = choose_tiles(TILES, grouped_matmul_call(x_RD, w_EDF, group_sizes_E))
    return _product(x_RD, w_EDF, group_sizes_E, tiles)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _product(x_RD: Array, w_EDF: Array, group_sizes_E: Array, tiles: RowTiles) -> Array:
    blocks = _Blocks.of(group_sizes_E, x_RD.shape[0], tiles)
    x_padded = blocks.padded(x_RD)

    def step(p: Array, y_padded: Array) -> Array:
        w_DF = w_EDF[blocks.group_P[p]]
        y_CF = jnp.matmul(blocks.read(x_padded, p), w_DF, preferred_element_type=jnp.float32)
        return blocks.written(y_padded, p, y_CF)

    y_padded = jnp.zeros((x_padded.shape[0], w_EDF.shape[2]), x_RD.dtype)
    return blocks.unpadded(blocks.loop(step, y_padded))


_Residuals = tuple[Array, Array, Array]


def _forward(
    x_RD: Array, w_EDF: Array, group_sizes_E: Array, tiles: RowTiles
) -> tuple[Array, _Residuals]:
    return _product(x_RD, w_EDF, group_sizes_E, tiles), (x_RD, w_EDF, group_sizes_E)


def _backward(tiles: RowTiles, residuals: _Residuals, dy_RF: Array) -> tuple[Array, Array, None]:
    x_RD, w_EDF, group_sizes_E = residuals
    blocks = _Blocks.of(group_sizes_E, x_RD.shape[0], tiles)
    x_padded, dy_padded = blocks.padded(x_RD), blocks.padded(dy_RF)

    def step(p: Array, gradients: tuple[Array, Array]) -> tuple[Array, Array]:
        dx_padded, dw_EDF = gradients
        group = blocks.group_P[p]
        x_CD, dy_CF = blocks.read(x_padded, p), blocks.read(dy_padded, p)
        dx_CD = jnp.einsum("cf,df->cd", dy_CF, w_EDF[group], preferred_element_type=jnp.float32)
        new_DF = jnp.einsum("cd,cf->df", x_CD, dy_CF, preferred_element_type=jnp.float32)
        return blocks.written(dx_padded, p, dx_CD), dw_EDF.at[group].add(new_DF)

    zeros = jnp.zeros(x_padded.shape, x_RD.dtype), jnp.zeros(w_EDF.shape, jnp.float32)
    dx_padded, dw_EDF = blocks.loop(step, zeros)
    return blocks.unpadded(dx_padded), dw_EDF.astype(w_EDF.dtype), None


_product.defvjp(_forward, _backward)


@attrs.frozen(eq=False)
class _Blocks:
    """Where blocks stand among rows.

    Args:
        size: C.
        num_rows: R.
        num_used: How many blocks hold a row.
        group_P: Group of each block.
        start_P: Its first row.
        end_P: The end of its group.
    """

    size: int
    num_rows: int
    num_used: Array
    group_P: Array
    start_P: Array
    end_P: Array

    @classmethod
    def of(cls, group_sizes_E: Array, num_rows: int, tiles: RowTiles) -> "_Blocks":
        num_groups = group_sizes_E.shape[0]
        size = min(tiles.max_rows, block_size(num_rows, num_groups))
        ends_E = jnp.minimum(jnp.cumsum(group_sizes_E.astype(jnp.int32)), num_rows)
        starts_E = jnp.concatenate([jnp.zeros_like(ends_E[:1]), ends_E[:-1]])
        last_E = jnp.cumsum((ends_E - starts_E + size - 1) // size)
        first_E = jnp.concatenate([jnp.zeros_like(last_E[:1]), last_E[:-1]])
        block_P = jnp.arange(-(-num_rows // size) + num_groups, dtype=jnp.int32)
        group_P = jnp.searchsorted(last_E, block_P, side="right").astype(jnp.int32)
        group_P = jnp.minimum(group_P, num_groups - 1)
        start_P = starts_E[group_P] + (block_P - first_E[group_P]) * size
        return cls(size, num_rows, last_E[-1], group_P, start_P, ends_E[group_P])

    def loop(self, step: Callable[[Array, T], T], carry: T) -> T:
        """Return the carry after a step for each block that holds a row."""
        first, most = jnp.zeros_like(self.num_used), self.group_P.shape[0]
        return loop_between(first, self.num_used, step, carry, most=most)

    def padded(self, x_RD: Array) -> Array:
        """Return rows with room for a block after the last."""
        return jnp.pad(x_RD, ((0, self.size), (0, 0)))

    def unpadded(self, x_padded: Array) -> Array:
        """Return rows without that room."""
        return x_padded[: self.num_rows]

    def read(self, x_padded: Array, p: Array) -> Array:
        """Return a block's rows, zeros for those of other groups."""
        x_CD = lax.dynamic_slice_in_dim(x_padded, self.start_P[p], self.size)
        row_C = self.start_P[p] + jnp.arange(self.size, dtype=jnp.int32)
        return jnp.where((row_C < self.end_P[p])[:, None], x_CD, jnp.zeros((), x_CD.dtype))

    def written(self, y_padded: Array, p: Array, y_CF: Array) -> Array:
        """Return all rows with a block's in their place."""
        new = y_CF.astype(y_padded.dtype)
        return lax.dynamic_update_slice_in_dim(y_padded, new, self.start_P[p], axis=0)
