"""The grouped matrix product on Hopper GPUs: the Pallas kernel of JAX, made to fit.

Forward and the gradient of the rows are the kernel, which is given a transposed copy of the
matrices for the latter: so all of it can be interpreted where there is no GPU.
The gradient of the matrices is a kernel of our own: the one that JAX ships for it asks a live
device how many processors it has, so it cannot be compiled for a target.

Letters: R rows, P rows padded to full tiles, E groups, D input width, F output width.
"""

from collections.abc import Callable
from functools import partial
from typing import cast

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas.ops.gpu.ragged_dot_mgpu import ragged_dot

from axcore.ops import Call, GroupedMatmulInputs
from axl_gpu.kernels.grouped_matmul.api import KERNELS, Kernels, matrix_gradients

RaggedDot = Callable[..., Array]

DTYPES = ("bfloat16", "float16")
ROW_TILES = (128, 64)
COLUMN_TILES = (128, 64)
"""Sizes of a tile of the result, best first."""

DEPTH_TILE = 64
STEPS_AHEAD = 4
"""Tiles of both operands in shared memory at once; more of them overflow it."""

MAX_GROUPS = 256
"""The kernel's code grows with the number of groups."""


def unsupported_reason(call: Call) -> str | None:
    """Return None where the kernel can serve the call, else the reason why not."""
    if call.dtype("x") not in DTYPES:
        return f"takes {' and '.join(DTYPES)}, not {call.dtype('x')}"
    num_groups, width, out_width = call.shape("w")
    if width % DEPTH_TILE or out_width % DEPTH_TILE or not width or not out_width:
        return f"takes widths that are multiples of {DEPTH_TILE}, not {width} and {out_width}"
    if not 0 < num_groups <= MAX_GROUPS:
        return f"takes 1 to {MAX_GROUPS} groups, not {num_groups}"
    if call.shape("x")[0] < ROW_TILES[-1]:
        return f"takes {ROW_TILES[-1]} rows or more, not {call.shape('x')[0]}"
    return None


def mosaic_grouped_matmul(
    inputs: GroupedMatmulInputs, spec: None = None, *, product: RaggedDot = ragged_dot
) -> Array:
    """Return `y_RF`.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: None: the op has no choices.
        product: The library's kernel, or what stands in for it where there is no GPU.
    """
    return _rows_of_groups(inputs, product)


def mosaic_grouped_matmul_backward(
    inputs: GroupedMatmulInputs,
    spec: None = None,
    *,
    dy_RF: Array,
    product: RaggedDot = ragged_dot,
    kernels: Kernels = KERNELS,
) -> GroupedMatmulInputs:
    """Return the gradients of rows and matrices.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: None: the op has no choices.
        dy_RF: The gradient of the output.
        product: As of `mosaic_grouped_matmul`.
        kernels: Our own, of which that of the matrices' gradients serves.
    """
    _, w_EDF, sizes_E = inputs
    back = GroupedMatmulInputs(dy_RF, jnp.swapaxes(w_EDF, 1, 2), sizes_E)
    whole = inputs._replace(x_RD=_in_whole_tiles(inputs.x_RD, w_EDF))
    dw_EDF = matrix_gradients(whole, _in_whole_tiles(dy_RF, w_EDF), kernels=kernels)
    return GroupedMatmulInputs(_rows_of_groups(back, product), dw_EDF, cast(Array, None))


def _rows_of_groups(inputs: GroupedMatmulInputs, product: RaggedDot) -> Array:
    """Return the library's product, with zeros past the last group, where it writes nothing."""
    x_RD, w_EDF, group_sizes_E = inputs
    num_rows = x_RD.shape[0]
    ends_E = jnp.minimum(jnp.cumsum(group_sizes_E.astype(jnp.int32)), num_rows)
    # The library trusts sizes to add up to no more than the rows.
    sizes_E = jnp.diff(ends_E, prepend=jnp.zeros((1,), jnp.int32))
    x_PD = _in_whole_tiles(x_RD, w_EDF)
    run = partial(
        product,
        block_m=_row_tile(num_rows, w_EDF),
        block_n=next(tile for tile in COLUMN_TILES if w_EDF.shape[2] % tile == 0),
        block_k=DEPTH_TILE,
        max_concurrent_steps=STEPS_AHEAD,
        grid_block_n=1,
    )

    @jax.custom_batching.sequential_vmap  # the kernel has no batched form
    def one_call(x_PD: Array, w_EDF: Array, sizes_E: Array) -> Array:
        return run(x_PD, w_EDF, group_sizes=sizes_E)

    y_PF: Array = one_call(x_PD, w_EDF, sizes_E)
    is_in_a_group_P = jnp.arange(x_PD.shape[0], dtype=jnp.int32) < jnp.sum(sizes_E)
    # `where`, not a product: memory that was never written may hold NaN.
    y_PF = jnp.where(is_in_a_group_P[:, None], y_PF, jnp.zeros((), y_PF.dtype))
    return y_PF[:num_rows]


def _in_whole_tiles(x_RD: Array, w_EDF: Array) -> Array:
    """Return rows padded with zeros to full tiles."""
    num_rows = x_RD.shape[0]
    return jnp.pad(x_RD, ((0, -num_rows % _row_tile(num_rows, w_EDF)), (0, 0)))


def _row_tile(num_rows: int, w_EDF: Array) -> int:
    mean = num_rows // w_EDF.shape[0]
    return next((tile for tile in ROW_TILES if tile <= mean), ROW_TILES[-1])
