"""Plain JAX in place of our GPU kernels: for meshes and remat, which their interpreter lacks."""

import jax.numpy as jnp
from axl_gpu.kernels.grouped_matmul import Kernels

from axcore.ops.grouped_matmul_reference import grouped_matmul_reference


def _rows_of_groups(x_RD, w, groups, *, is_turned, tiles):
    w_EDF = jnp.swapaxes(w, 1, 2) if is_turned else w
    return grouped_matmul_reference(x_RD, w_EDF, groups.end_E - groups.start_E)


def _matrices_of_groups(x_RD, dy_RF, groups, *, tiles):
    row = jnp.arange(x_RD.shape[0])[None]
    is_in = (row >= groups.start_E[:, None]) & (row < groups.end_E[:, None])
    wide = (one.astype(jnp.float32) for one in (is_in, x_RD, dy_RF))
    return jnp.einsum("er,rd,rf->edf", *wide).astype(x_RD.dtype)


PLAIN_GROUPED = Kernels(_rows_of_groups, _matrices_of_groups)
