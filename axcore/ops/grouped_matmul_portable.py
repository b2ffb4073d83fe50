# ruff: noqa: N815 - fields carry shape letters
"""The grouped matrix product in plain JAX: each group is padded to whole blocks of rows.

A loop over blocks multiplies each by the matrix of its group. There are at most `R / C + E` blocks
of C rows, and C is chosen near `R / E`, so the work is that of at most about 2 R rows whatever the
number of groups.

Letters: R rows, E groups, D input width, F output width, P blocks, C rows of a block.
"""

import attrs
import jax
import jax.numpy as jnp
from jax import Array, lax

MIN_BLOCK, MAX_BLOCK = 8, 256


@jax.custom_vjp
def grouped_matmul_portable(x_RD: Array, w_EDF: Array, group_sizes_E: Array) -> Array:
    """Return `y_RF`; see `grouped_matmul` for the meaning."""
    layout = _Layout.of(group_sizes_E, x_RD.shape[0])
    x_PCD = layout.spread(x_RD)

    def step(_: None, block: tuple[Array, Array]) -> tuple[None, Array]:
        x_CD, group = block
        y_CF = jnp.matmul(x_CD, w_EDF[group], preferred_element_type=jnp.float32)
        return None, y_CF.astype(x_RD.dtype)

    _, y_PCF = lax.scan(step, None, (x_PCD, layout.group_P))
    return layout.collect(y_PCF)


_Residuals = tuple[Array, Array, Array]


def _forward(x_RD: Array, w_EDF: Array, group_sizes_E: Array) -> tuple[Array, _Residuals]:
    return grouped_matmul_portable(x_RD, w_EDF, group_sizes_E), (x_RD, w_EDF, group_sizes_E)


def _backward(residuals: _Residuals, dy_RF: Array) -> tuple[Array, Array, None]:
    x_RD, w_EDF, group_sizes_E = residuals
    layout = _Layout.of(group_sizes_E, x_RD.shape[0])

    def step(dw_EDF: Array, block: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        x_CD, dy_CF, group = block
        dx_CD = jnp.einsum("cf,df->cd", dy_CF, w_EDF[group], preferred_element_type=jnp.float32)
        new_DF = jnp.einsum("cd,cf->df", x_CD, dy_CF, preferred_element_type=jnp.float32)
        return dw_EDF.at[group].add(new_DF), dx_CD.astype(x_RD.dtype)

    zeros = jnp.zeros(w_EDF.shape, jnp.float32)
    blocks = (layout.spread(x_RD), layout.spread(dy_RF), layout.group_P)
    dw_EDF, dx_PCD = lax.scan(step, zeros, blocks)
    return layout.collect(dx_PCD), dw_EDF.astype(w_EDF.dtype), None


grouped_matmul_portable.defvjp(_forward, _backward)


def block_size(num_rows: int, num_groups: int) -> int:
    """Return the rows of a block: a power of two near the mean size of a group."""
    mean = max(1, num_rows // max(1, num_groups))
    return min(MAX_BLOCK, max(MIN_BLOCK, 1 << (mean - 1).bit_length()))


@attrs.frozen(eq=False)
class _Layout:
    """Where rows stand once groups are padded to whole blocks.

    Args:
        group_P: Group of each block.
        row_PC: Row at each place of a block; R where there is none.
        place_R: Place of each row, counted over all blocks; past the end for rows of no group.
    """

    group_P: Array
    row_PC: Array
    place_R: Array

    @classmethod
    def of(cls, group_sizes_E: Array, num_rows: int) -> "_Layout":
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
            group_P=group_P,
            row_PC=jnp.where(row_PC < ends_E[group_P][:, None], row_PC, num_rows),
            place_R=jnp.where(group_R < num_groups, place_R, num_blocks * size),
        )

    def spread(self, x_RD: Array) -> Array:
        """Return rows at their places in blocks `[P, C, D]`, zeros between."""
        return jnp.take(x_RD, self.row_PC, axis=0, mode="fill", fill_value=0.0)

    def collect(self, y_PCF: Array) -> Array:
        """Return `y_RF` from blocks; zeros for rows of no group."""
        y_places = y_PCF.reshape(-1, y_PCF.shape[-1])
        return jnp.take(y_places, self.place_R, axis=0, mode="fill", fill_value=0.0)


def _exclusive(ends_E: Array) -> Array:
    """Return where each begins, from where each ends."""
    return jnp.concatenate([jnp.zeros((1,), ends_E.dtype), ends_E[:-1]])


def _group_of(index: Array, ends_E: Array) -> Array:
    return jnp.searchsorted(ends_E, index, side="right").astype(jnp.int32)
