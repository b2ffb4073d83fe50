"""The meaning of the grouped matrix product: every row looks up its own matrix, in float32."""

import jax.numpy as jnp
from jax import Array
from jax.lax import Precision

from axcore.ops.grouped_matmul.types import GroupedMatmulInputs


def grouped_matmul_reference(inputs: GroupedMatmulInputs, spec: None = None) -> Array:
    """Return `y_RF`; holds a matrix for every row."""
    x_RD, w_EDF, group_sizes_E = inputs
    ends_E = jnp.cumsum(group_sizes_E)
    row = jnp.arange(x_RD.shape[0], dtype=ends_E.dtype)
    group_R = jnp.searchsorted(ends_E, row, side="right")
    w_RDF = jnp.take(w_EDF.astype(jnp.float32), group_R, axis=0, mode="fill", fill_value=0.0)
    y_RF = jnp.einsum("rd,rdf->rf", x_RD.astype(jnp.float32), w_RDF, precision=Precision.HIGHEST)
    return y_RF.astype(x_RD.dtype)
