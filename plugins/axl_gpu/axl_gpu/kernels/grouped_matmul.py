"""The grouped matrix product on Hopper GPUs, forward and both gradients by kernels of our own.

Letters: R rows, E groups, D input width, F output width.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from axcore.ops import Call, TileTable, choose_tiles, power_of_two
from axcore.parallel import grouped_matmul_on_each_device
from axcore.plugins import Hardware
from axl_gpu.kernels.grouped_kernels import matrices_of_groups, rows_of_groups
from axl_gpu.kernels.grouped_tiles import ALIGNED, GroupRows
from axl_gpu.kernels.matmul_tiles import MatmulTiles, all_tiles

DTYPES = ("bfloat16", "float16")
WIDTHS = 64
"""Widths are multiples of it."""

Arrays = tuple[Array, Array, Array]
"""Rows, matrices and group sizes."""

DEPTH = 64

MAX_GROUPS = 65535
"""Thread blocks along the second axis of a grid."""


class Kernels(NamedTuple):
    """Functions like `rows_of_groups` and `matrices_of_groups`."""

    rows: Callable[..., Array]
    matrices: Callable[..., Array]


KERNELS = Kernels(rows_of_groups, matrices_of_groups)


def default_tiles(call: Call, hardware: Hardware) -> MatmulTiles:
    """Returns large tiles, but small ones of rows where groups do not fill large ones."""
    mean = call.shape("x")[0] // call.shape("w")[0]
    return MatmulTiles(rows=128) if mean >= 128 else MatmulTiles(rows=64, num_ahead=4)


def candidates(call: Call, hardware: Hardware) -> Iterator[MatmulTiles]:
    """Yields what fits the shared memory of a Hopper."""
    return all_tiles(depth=DEPTH, itemsize=2, result_itemsize=2)


def bucket(call: Call) -> dict[str, int]:
    """Returns the widths, and about how many rows a group has."""
    num_groups, width, out_width = call.shape("w")
    rows = power_of_two(-(-call.shape("x")[0] // num_groups))
    return {"width": width, "out_width": out_width, "rows_of_a_group": rows}


TILES = TileTable(
    kernel="grouped_matmul/gpu_grouped_matmul",
    package=__package__,
    default=default_tiles,
    candidates=candidates,
    bucket=bucket,
)


def accepts(call: Call) -> str | None:
    """Returns None where the kernels can serve the call, else the reason why not."""
    if call.dtype("x") not in DTYPES:
        return f"takes {' and '.join(DTYPES)}, not {call.dtype('x')}"
    num_groups, width, out_width = call.shape("w")
    if width % WIDTHS or out_width % WIDTHS or not width or not out_width:
        return f"takes widths that are multiples of {WIDTHS}, not {width} and {out_width}"
    if not 0 < num_groups <= MAX_GROUPS:
        return f"takes 1 to {MAX_GROUPS} groups, not {num_groups}"
    if not call.shape("x")[0]:
        return "takes one row or more, not none"
    return None


def gpu_grouped_matmul(
    x_RD: Array, w_EDF: Array, group_sizes_E: Array, *, kernels: Kernels = KERNELS
) -> Array:
    """Returns `y_RF`.

    Products of 16-bit operands, summed in float32, rounded once. Each tile of the result is summed
    by a thread block; forward reads each matrix once for every tile of its group's rows, and rows
    once for every tile of columns. Nothing but the results is written.

    Args:
        x_RD: Rows of a call that `accepts` takes, sorted by group.
        w_EDF: A matrix for each group.
        group_sizes_E: Rows of each group.
        kernels: Both kernels, or what stands in for them where there is no GPU.
    """
    multiply = partial(_multiply, kernels=kernels)
    return grouped_matmul_on_each_device(multiply, x_RD, w_EDF, group_sizes_E)


def matrix_gradients(given: Arrays, dy_RF: Array, *, kernels: Kernels = KERNELS) -> Array:
    """Returns `dw_EDF`: `x^T dy` over the rows of each group.

    Args:
        given: Rows, matrices and group sizes; widths multiples of 64.
        dy_RF: The gradient of the output.
        kernels: As of `gpu_grouped_matmul`.
    """
    x_RD, _, group_sizes_E = given
    tiles = choose_tiles(TILES, _call(given))
    return kernels.matrices(
        _padded(x_RD),
        _padded(dy_RF),
        GroupRows.of(group_sizes_E, x_RD.shape[0]),
        tiles=tiles.within(rows=x_RD.shape[1], columns=dy_RF.shape[1]),
    )


def _call(given: Arrays) -> Call:
    x_RD, w_EDF, group_sizes_E = given
    return Call.of("grouped_matmul", {"x": x_RD, "w": w_EDF, "group_sizes": group_sizes_E}, {})


def _multiply(x_RD: Array, w_EDF: Array, group_sizes_E: Array, *, kernels: Kernels) -> Array:
    tiles = choose_tiles(TILES, _call((x_RD, w_EDF, group_sizes_E)))
    return _product(x_RD, w_EDF, group_sizes_E, tiles, kernels)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _product(
    x_RD: Array, w_EDF: Array, group_sizes_E: Array, tiles: MatmulTiles, kernels: Kernels
) -> Array:
    return _rows((x_RD, w_EDF, group_sizes_E), tiles, kernels, is_turned=False)


def _forward(
    x_RD: Array, w_EDF: Array, group_sizes_E: Array, tiles: MatmulTiles, kernels: Kernels
) -> tuple[Array, Arrays]:
    given = (x_RD, w_EDF, group_sizes_E)
    return _product(*given, tiles, kernels), given


def _backward(
    tiles: MatmulTiles, kernels: Kernels, given: Arrays, dy_RF: Array
) -> tuple[Array, Array, None]:
    dx_RD = _rows((dy_RF, *given[1:]), tiles, kernels, is_turned=True)
    return dx_RD, matrix_gradients(given, dy_RF, kernels=kernels), None


_product.defvjp(_forward, _backward)


def _rows(arrays: Arrays, tiles: MatmulTiles, kernels: Kernels, *, is_turned: bool) -> Array:
    x_RD, w, group_sizes_E = arrays
    y_RF = kernels.rows(
        _padded(x_RD),
        w,
        GroupRows.of(group_sizes_E, x_RD.shape[0]),
        is_turned=is_turned,
        tiles=tiles.within(columns=w.shape[1 if is_turned else 2]),
    )
    return y_RF[: x_RD.shape[0]]


def _padded(x_RD: Array) -> Array:
    """Returns a multiple of 8 rows."""
    return jnp.pad(x_RD, ((0, -x_RD.shape[0] % ALIGNED), (0, 0)))
