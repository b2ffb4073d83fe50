"""The grouped matrix product on Hopper GPUs: the Pallas kernel of JAX, made to fit.

Forward and the gradient of the rows are the kernel, which is given a transposed copy of the
matrices for the latter: so all of it can be interpreted where there is no GPU.
The gradient of the matrices is a kernel of our own: the one that JAX ships for it asks a live
device how many processors it has, so it cannot be compiled for a target.

Letters: R rows, P rows padded to whole tiles, E groups, D input width, F output width.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas.ops.gpu.ragged_dot_mgpu import ragged_dot

from axcore.ops import Call
from axcore.parallel import grouped_matmul_on_each_device
from axl_gpu.kernels.grouped_matmul import KERNELS, Arrays, Kernels, matrix_gradients

Product = Callable[..., Array]

DTYPES = ("bfloat16", "float16")
ROW_TILES = (128, 64)
COLUMN_TILES = (128, 64)
"""Sizes of a tile of the result, best first."""

DEPTH_TILE = 64
STEPS_AHEAD = 4
"""Tiles of both operands in shared memory at once; more of them overflow it."""

MAX_GROUPS = 256
"""The kernel's code grows with the number of groups."""


def accepts(call: Call) -> str | None:
    """Returns None where the kernel can serve the call, else the reason why not."""
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
    x_RD: Array,
    w_EDF: Array,
    group_sizes_E: Array,
    *,
    product: Product = ragged_dot,
    kernels: Kernels = KERNELS,
) -> Array:
    """Returns `y_RF`.

    Args:
        x_RD: Rows of a call that `accepts` takes, sorted by group.
        w_EDF: A matrix for each group.
        group_sizes_E: Rows of each group.
        product: The library's kernel, or what stands in for it where there is no GPU.
        kernels: Our own, of which that of the matrices' gradients serves.
    """
    multiply = partial(_multiply, product=product, kernels=kernels)
    return grouped_matmul_on_each_device(multiply, x_RD, w_EDF, group_sizes_E)


def _multiply(
    x_RD: Array, w_EDF: Array, group_sizes_E: Array, *, product: Product, kernels: Kernels
) -> Array:
    num_rows = x_RD.shape[0]
    mean = num_rows // w_EDF.shape[0]
    row_tile = next((tile for tile in ROW_TILES if tile <= mean), ROW_TILES[-1])
    ends_E = jnp.minimum(jnp.cumsum(group_sizes_E.astype(jnp.int32)), num_rows)
    sizes_E = jnp.diff(ends_E, prepend=jnp.zeros((1,), jnp.int32))
    x_PD = jnp.pad(x_RD, ((0, -num_rows % row_tile), (0, 0)))
    return _product(x_PD, w_EDF, sizes_E, row_tile, product, kernels)[:num_rows]


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _product(
    x_PD: Array,
    w_EDF: Array,
    sizes_E: Array,
    row_tile: int,
    product: Product,
    kernels: Kernels,
) -> Array:
    return _rows_of_groups(x_PD, w_EDF, sizes_E, row_tile, product)


def _forward(
    x_PD: Array,
    w_EDF: Array,
    sizes_E: Array,
    row_tile: int,
    product: Product,
    kernels: Kernels,
) -> tuple[Array, Arrays]:
    y_PF = _rows_of_groups(x_PD, w_EDF, sizes_E, row_tile, product)
    return y_PF, (x_PD, w_EDF, sizes_E)


def _backward(
    row_tile: int, product: Product, kernels: Kernels, given: Arrays, dy_PF: Array
) -> tuple[Array, Array, None]:
    _, w_EDF, sizes_E = given
    dx_PD = _rows_of_groups(dy_PF, jnp.swapaxes(w_EDF, 1, 2), sizes_E, row_tile, product)
    return dx_PD, matrix_gradients(given, dy_PF, kernels=kernels), None


_product.defvjp(_forward, _backward)


def _rows_of_groups(
    x_PD: Array, w_EDF: Array, sizes_E: Array, row_tile: int, product: Product
) -> Array:
    """Returns the library's product, with zeros past the last group, where it writes nothing."""
    run = partial(
        product,
        block_m=row_tile,
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
    return jnp.where(is_in_a_group_P[:, None], y_PF, jnp.zeros((), y_PF.dtype))
