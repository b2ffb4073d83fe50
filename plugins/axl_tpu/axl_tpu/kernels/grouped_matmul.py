"""The grouped matrix product on TPU by Pallas kernels of our own, forward and backward.

Rows stay as they are: nothing is padded or copied, and rows of no group are made zero by the kernel
that writes the others. Under a mesh each device works on its own rows.

Letters: R rows, E groups, D input width, F output width.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
from jax import Array

from axcore.ops import Call, choose_tiles
from axcore.parallel import grouped_matmul_on_each_device
from axl_tpu.kernels.grouped_matrices import matrices_gradient
from axl_tpu.kernels.grouped_rows import rows_product
from axl_tpu.kernels.grouped_tiles import TILES, GroupedTiles

DTYPES = ("bfloat16", "float32")
MAX_VISITS = 2**16
"""Blocks of rows and groups whose list fits scalar memory."""
SMALLEST_BLOCK = 128


def accepts(call: Call) -> str | None:
    """Returns None where the kernels can serve the call, else the reason why not."""
    if call.dtype("x") not in DTYPES:
        return f"takes bfloat16 and float32, not {call.dtype('x')}"
    if 0 in (*call.shape("x"), *call.shape("w")):
        return f"takes no empty array, not x {call.shape('x')} and w {call.shape('w')}"
    num_visits = call.shape("x")[0] // SMALLEST_BLOCK + call.shape("w")[0]
    if num_visits > MAX_VISITS:
        return f"takes up to {MAX_VISITS} blocks of rows and groups, not {num_visits}"
    return None


def tpu_grouped_matmul(
    x_RD: Array, w_EDF: Array, group_sizes_E: Array, *, interpret: Any = False
) -> Array:
    """Returns `y_RF`; sums are float32.

    Args:
        x_RD: Rows of a call that `accepts` takes, sorted by group.
        w_EDF: A matrix for each group.
        group_sizes_E: Rows of each group.
        interpret: Runs the kernels by an interpreter, on any device.
    """
    call = Call.of("grouped_matmul", {"x": x_RD, "w": w_EDF}, {})
    multiply = partial(_multiply, how=_How(choose_tiles(TILES, call), interpret))
    return grouped_matmul_on_each_device(multiply, x_RD, w_EDF, group_sizes_E)


class _How(NamedTuple):
    tiles: GroupedTiles
    interpret: Any


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _product(x_RD: Array, w_EDF: Array, group_sizes_E: Array, how: _How) -> Array:
    return rows_product(
        x_RD, w_EDF, group_sizes_E, how.tiles, is_transposed=False, interpret=how.interpret
    )


def _multiply(x_RD: Array, w_EDF: Array, group_sizes_E: Array, *, how: _How) -> Array:
    y_RF: Array = _product(x_RD, w_EDF, group_sizes_E, how)
    return y_RF


_Residuals = tuple[Array, Array, Array]


def _forward(x: Array, w: Array, group_sizes: Array, how: _How) -> tuple[Array, _Residuals]:
    return _product(x, w, group_sizes, how), (x, w, group_sizes)


def _backward(how: _How, residuals: _Residuals, dy_RF: Array) -> tuple[Array, Array, None]:
    x_RD, w_EDF, group_sizes_E = residuals
    tiles, interpret = how
    dx_RD = rows_product(
        dy_RF, w_EDF, group_sizes_E, tiles, is_transposed=True, interpret=interpret
    )
    dw_EDF = matrices_gradient(
        x_RD, dy_RF, group_sizes_E, tiles, dtype=w_EDF.dtype, interpret=interpret
    )
    return dx_RD, dw_EDF, None


_product.defvjp(_forward, _backward)
