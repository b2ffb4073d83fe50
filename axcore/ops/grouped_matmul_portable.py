"""The grouped matrix product in plain JAX: each group is padded to whole blocks of rows.

A loop over blocks multiplies each by the matrix of its group. There are at most `R / C + E` blocks
of C rows, and C is chosen near `R / E`, so the work is that of at most about 2 R rows whatever the
number of groups.

Letters: R rows, E groups, D input width, F output width, P blocks, C rows of a block.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from axcore.ops.grouped_layout import GroupLayout


@jax.custom_vjp
def grouped_matmul_portable(x_RD: Array, w_EDF: Array, group_sizes_E: Array) -> Array:
    """Return `y_RF`; see `grouped_matmul` for the meaning."""
    layout = GroupLayout.of(group_sizes_E, x_RD.shape[0])
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
    layout = GroupLayout.of(group_sizes_E, x_RD.shape[0])

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
