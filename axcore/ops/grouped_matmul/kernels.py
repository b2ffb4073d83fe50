"""The grouped matrix product in plain JAX: the reference, and blocks of rows of one group each.

Letters: R rows, E groups, D input width, F output width, P blocks, C rows of a block.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import attrs
import jax.numpy as jnp
from jax import Array, lax
from jax.lax import Precision

from axcore.ops.blocks import bounded_fori_loop
from axcore.ops.grouped_matmul.op import GROUPED_MATMUL_OP, GroupedMatmulInputs
from axcore.ops.plan import BlockSizeTable, choose_block_sizes, power_of_two

MIN_BLOCK, MAX_BLOCK = 8, 256


def block_size(num_rows: int, num_groups: int) -> int:
    """Return the rows of a block: a power of two near the mean size of a group."""
    mean = max(1, num_rows // max(1, num_groups))
    return min(MAX_BLOCK, max(MIN_BLOCK, 1 << (mean - 1).bit_length()))


@attrs.frozen(eq=False)
class GroupLayout:
    """Where rows are once groups are padded to full blocks.

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


def grouped_matmul_reference(inputs: GroupedMatmulInputs, spec: None = None) -> Array:
    """Return `y_RF`; holds a matrix for every row."""
    x_RD, w_EDF, group_sizes_E = inputs
    ends_E = jnp.cumsum(group_sizes_E)
    row = jnp.arange(x_RD.shape[0], dtype=ends_E.dtype)
    group_R = jnp.searchsorted(ends_E, row, side="right")
    # `fill` gives rows of no group a matrix of zeros; by default JAX would give them the last
    # group's.
    w_RDF = jnp.take(w_EDF.astype(jnp.float32), group_R, axis=0, mode="fill", fill_value=0.0)
    y_RF = jnp.einsum("rd,rdf->rf", x_RD.astype(jnp.float32), w_RDF, precision=Precision.HIGHEST)
    return y_RF.astype(x_RD.dtype)


T = TypeVar("T")


@attrs.frozen
class RowTiles:
    """At most so many rows in a block."""

    max_rows: int


BLOCK_SIZES = BlockSizeTable(
    kernel="grouped_matmul/portable",
    package="axcore.ops.grouped_matmul",
    default=lambda call, hardware: RowTiles(128),
    candidates=lambda call, hardware: map(RowTiles, (32, 64, 128, 256)),
    bucket=lambda call: {
        "dtype": call.dtype("x"),
        "width": power_of_two(call.shape("w")[1]),
        "out_width": power_of_two(call.shape("w")[2]),
    },
)


def grouped_matmul_portable(inputs: GroupedMatmulInputs, spec: None = None) -> Array:
    """Return `y_RF`; see `grouped_matmul` for the meaning."""
    x_RD, w_EDF, _ = inputs
    blocks = _Blocks.of(inputs)
    x_padded = blocks.padded(x_RD)

    def step(p: Array, y_padded: Array) -> Array:
        w_DF = w_EDF[blocks.group_P[p]]
        y_CF = jnp.matmul(blocks.read(x_padded, p), w_DF, preferred_element_type=jnp.float32)
        return blocks.written(y_padded, p, y_CF)

    y_padded = jnp.zeros((x_padded.shape[0], w_EDF.shape[2]), x_RD.dtype)
    return blocks.unpadded(blocks.loop(step, y_padded))


def grouped_matmul_portable_backward(
    inputs: GroupedMatmulInputs, spec: None = None, *, dy_RF: Array
) -> GroupedMatmulInputs:
    """Return the gradients; see `grouped_matmul` for the meaning."""
    x_RD, w_EDF, _ = inputs
    blocks = _Blocks.of(inputs)
    x_padded, dy_padded = blocks.padded(x_RD), blocks.padded(dy_RF)

    def step(p: Array, gradients: tuple[Array, Array]) -> tuple[Array, Array]:
        dx_padded, dw_EDF = gradients
        group = blocks.group_P[p]
        x_CD, dy_CF = blocks.read(x_padded, p), blocks.read(dy_padded, p)
        dx_CD = jnp.einsum("cf,df->cd", dy_CF, w_EDF[group], preferred_element_type=jnp.float32)
        new_DF = jnp.einsum("cd,cf->df", x_CD, dy_CF, preferred_element_type=jnp.float32)
        return blocks.written(dx_padded, p, dx_CD), dw_EDF.at[group].add(new_DF)

    # Each row's gradient is written once, and may be rounded; each matrix's is a sum over blocks,
    # in float32.
    zeros = jnp.zeros(x_padded.shape, x_RD.dtype), jnp.zeros(w_EDF.shape, jnp.float32)
    dx_padded, dw_EDF = blocks.loop(step, zeros)
    return GroupedMatmulInputs(
        blocks.unpadded(dx_padded), dw_EDF.astype(w_EDF.dtype), cast(Array, None)
    )


@attrs.frozen(eq=False)
class _Blocks:
    """Where blocks are among rows.

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
    def of(cls, inputs: GroupedMatmulInputs) -> "_Blocks":
        block_sizes = choose_block_sizes(BLOCK_SIZES, GROUPED_MATMUL_OP.call(inputs))
        group_sizes_E, num_rows = inputs.group_sizes_E, inputs.x_RD.shape[0]
        num_groups = group_sizes_E.shape[0]
        # No larger than a mean group: of a larger block most would be rows of others, computed
        # and thrown away.
        size = min(block_sizes.max_rows, block_size(num_rows, num_groups))
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
        return bounded_fori_loop(first, self.num_used, step, carry, max_steps=most)

    def padded(self, x_RD: Array) -> Array:
        """Return rows with room for a block after the last."""
        # A slice that reaches past the end is moved back by JAX, without an error: its rows would
        # be others.
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
        # A last block of a group writes zeros over rows of the next one, whose own blocks come
        # after it in order and write them again. So the loop must not be reordered.
        return lax.dynamic_update_slice_in_dim(y_padded, new, self.start_P[p], axis=0)
