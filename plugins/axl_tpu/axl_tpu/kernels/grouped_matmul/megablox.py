"""The grouped matrix product on TPU: the Pallas kernels ("megablox") that JAX ships, made to fit.

Forward and the gradient of the rows are one kernel, the gradient of the matrices is another. Rows
are padded to full tiles; tiles of no group are never computed.

Letters: R rows, P rows with their padding, E groups, D input width, F output width.
"""

from typing import cast

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm, tgmm

from axcore.ops import Call, GroupedMatmulInputs

ROW_TILES = (512, 256, 128)
"""Rows of a tile, best first; the largest that at most doubles the rows of a mean group."""

LANES = 128
MAX_TILE = {"bfloat16": 1024, "float32": 512}
"""Largest tile along D and F by dtype; larger ones overflow VMEM."""

Tiling = tuple[int, int, int]


def unsupported_reason(call: Call) -> str | None:
    """Return None where megablox can serve the call, else the reason why not."""
    if call.dtype("x") not in MAX_TILE:
        return f"takes bfloat16 and float32, not {call.dtype('x')}"
    if call.dtype("group_sizes") != "int32":
        return f"takes group sizes of int32, not {call.dtype('group_sizes')}"
    if 0 in (*call.shape("x"), *call.shape("w")):
        return f"takes no empty array, not x {call.shape('x')} and w {call.shape('w')}"
    return None


def megablox(inputs: GroupedMatmulInputs, spec: None = None, *, interpret: bool = False) -> Array:
    """Return `y_RF`.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: None: the op has no choices.
        interpret: Runs the kernel by an interpreter, on any device.
    """
    (x_PD, w_EDF, sizes_E), num_rows, row_tile = _padded(inputs)
    tiling = _tiling(row_tile, w_EDF.shape[1], w_EDF.shape[2], x_PD.dtype)
    with jax.numpy_dtype_promotion("standard"):  # the library mixes dtypes
        y_PF = gmm(x_PD, w_EDF, sizes_E, x_PD.dtype, tiling, interpret=interpret)
    return _only_rows_of_groups(y_PF, sizes_E)[:num_rows]


def megablox_backward(
    inputs: GroupedMatmulInputs, spec: None = None, *, dy_RF: Array, interpret: bool = False
) -> GroupedMatmulInputs:
    """Return the gradients of rows and matrices.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: None: the op has no choices.
        dy_RF: The gradient of the output.
        interpret: Runs the kernels by an interpreter, on any device.
    """
    (x_PD, w_EDF, sizes_E), num_rows, row_tile = _padded(inputs)
    dy_PF = jnp.pad(dy_RF, ((0, -num_rows % row_tile), (0, 0)))
    (_, width, out_width), dtype = w_EDF.shape, x_PD.dtype
    tiling = _tiling(row_tile, width, out_width, dtype)
    back = _tiling(row_tile, out_width, width, dtype)
    with jax.numpy_dtype_promotion("standard"):
        dx_PD = gmm(dy_PF, w_EDF, sizes_E, dtype, back, transpose_rhs=True, interpret=interpret)
        dw_EDF = tgmm(x_PD.T, dy_PF, sizes_E, w_EDF.dtype, tiling, interpret=interpret)
    dx_RD = _only_rows_of_groups(dx_PD, sizes_E)[:num_rows]
    return GroupedMatmulInputs(dx_RD, dw_EDF, cast(Array, None))


def _padded(inputs: GroupedMatmulInputs) -> tuple[GroupedMatmulInputs, int, int]:
    """Return the call with full tiles of rows, its number of rows, and the rows of a tile."""
    x_RD, w_EDF, group_sizes_E = inputs
    num_rows = x_RD.shape[0]
    mean = num_rows // w_EDF.shape[0]
    row_tile = next((tile for tile in ROW_TILES if tile <= 2 * mean), ROW_TILES[-1])
    ends_E = jnp.minimum(jnp.cumsum(group_sizes_E), num_rows)
    # The library trusts sizes to add up to no more than the rows.
    sizes_E = jnp.diff(ends_E, prepend=jnp.zeros((1,), ends_E.dtype))
    x_PD = jnp.pad(x_RD, ((0, -num_rows % row_tile), (0, 0)))
    return GroupedMatmulInputs(x_PD, w_EDF, sizes_E), num_rows, row_tile


def _tiling(row_tile: int, width: int, out_width: int, dtype: jnp.dtype) -> Tiling:
    return row_tile, _tile(width, dtype), _tile(out_width, dtype)


def _tile(width: int, dtype: jnp.dtype) -> int:
    """Return a multiple of the lanes; a last tile may extend past the width."""
    return min(MAX_TILE[dtype.name], -(-width // LANES) * LANES)


def _only_rows_of_groups(y_PF: Array, sizes_E: Array) -> Array:
    """Return the rows with zeros past the last group, where the kernel writes nothing."""
    row_P = jnp.arange(y_PF.shape[0], dtype=jnp.int32)
    is_in_a_group_P = row_P < jnp.sum(sizes_E)
    # `where`, not a product: memory that was never written may hold NaN.
    return jnp.where(is_in_a_group_P[:, None], y_PF, jnp.zeros((), y_PF.dtype))
