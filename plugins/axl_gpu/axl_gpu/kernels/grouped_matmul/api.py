"""The grouped matrix product on Hopper GPUs, forward and both gradients by kernels of our own.

Letters: R rows, E groups, D input width, F output width.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

import jax.numpy as jnp
from jax import Array

from axcore.ops import (
    BlockSizeTable,
    Call,
    GroupedMatmulInputs,
    choose_block_sizes,
    power_of_two,
)
from axcore.plugins import Hardware
from axl_gpu.kernels.grouped_matmul.kernels import (
    ALIGNED,
    GroupRows,
    matrices_of_groups,
    rows_of_groups,
)
from axl_gpu.kernels.matmul.block_sizes import MatmulBlockSizes, all_block_sizes

DTYPES = ("bfloat16", "float16")
WIDTHS = 64
"""Widths are multiples of it."""

DEPTH = 64

MAX_GROUPS = 65535
"""Thread blocks along the second axis of a grid."""


class Kernels(NamedTuple):
    """Functions like `rows_of_groups` and `matrices_of_groups`."""

    rows: Callable[..., Array]
    matrices: Callable[..., Array]


KERNELS = Kernels(rows_of_groups, matrices_of_groups)


def default_block_sizes(call: Call, hardware: Hardware) -> MatmulBlockSizes:
    """Return large tiles, but small ones of rows where groups do not fill large ones."""
    # A tile holds rows of one group: with fewer rows a group than a tile has, most of its product
    # is of rows that are dropped.
    mean = call.shape("x")[0] // call.shape("w")[0]
    return MatmulBlockSizes(rows=128) if mean >= 128 else MatmulBlockSizes(rows=64, num_ahead=4)


def candidates(call: Call, hardware: Hardware) -> Iterator[MatmulBlockSizes]:
    """Yield what fits the shared memory of a Hopper."""
    return all_block_sizes(depth=DEPTH, itemsize=2, result_itemsize=2)


def bucket(call: Call) -> dict[str, int]:
    """Return the widths, and about how many rows a group has."""
    num_groups, width, out_width = call.shape("w")
    rows = power_of_two(-(-call.shape("x")[0] // num_groups))
    return {"width": width, "out_width": out_width, "rows_of_a_group": rows}


BLOCK_SIZES = BlockSizeTable(
    kernel="grouped_matmul/gpu_grouped_matmul",
    package=__package__,
    default=default_block_sizes,
    candidates=candidates,
    bucket=bucket,
)


def unsupported_reason(call: Call) -> str | None:
    """Return None where the kernels can serve the call, else the reason why not."""
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
    inputs: GroupedMatmulInputs, spec: None = None, *, kernels: Kernels = KERNELS
) -> Array:
    """Return `y_RF`.

    Products of 16-bit operands, summed in float32, rounded once. Each tile of the result is summed
    by a thread block; each matrix is read once for every tile of its group's rows, and rows once
    for every tile of columns. Nothing but the result is written.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: None: the op has no choices.
        kernels: Both kernels, or what stands in for them where there is no GPU.
    """
    return _rows(inputs, kernels, is_transposed=False)


def gpu_grouped_matmul_backward(
    inputs: GroupedMatmulInputs, spec: None = None, *, dy_RF: Array, kernels: Kernels = KERNELS
) -> GroupedMatmulInputs:
    """Return the gradients of rows and matrices.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: None: the op has no choices.
        dy_RF: The gradient of the output.
        kernels: As of `gpu_grouped_matmul`.
    """
    # The same kernel, which reads matrices the other way round: no transposed copy of all
    # experts' weights.
    dx_RD = _rows(inputs._replace(x_RD=dy_RF), kernels, is_transposed=True)
    dw_EDF = matrix_gradients(inputs, dy_RF, kernels=kernels)
    return GroupedMatmulInputs(dx_RD, dw_EDF, cast(Array, None))


def matrix_gradients(
    inputs: GroupedMatmulInputs, dy_RF: Array, *, kernels: Kernels = KERNELS
) -> Array:
    """Return `dw_EDF`: `x^T dy` over the rows of each group.

    Args:
        inputs: Rows, matrices and group sizes; widths multiples of 64.
        dy_RF: The gradient of the output.
        kernels: As of `gpu_grouped_matmul`.
    """
    x_RD, _, group_sizes_E = inputs
    return kernels.matrices(
        _padded(x_RD),
        _padded(dy_RF),
        GroupRows.of(group_sizes_E, x_RD.shape[0]),
        block_sizes=_block_sizes(inputs).within(rows=x_RD.shape[1], columns=dy_RF.shape[1]),
    )


def _block_sizes(inputs: GroupedMatmulInputs) -> MatmulBlockSizes:
    x_RD, w_EDF, group_sizes_E = inputs
    arrays = {"x": x_RD, "w": w_EDF, "group_sizes": group_sizes_E}
    return choose_block_sizes(BLOCK_SIZES, Call.of("grouped_matmul", arrays, {}))


def _rows(inputs: GroupedMatmulInputs, kernels: Kernels, *, is_transposed: bool) -> Array:
    x_RD, w, group_sizes_E = inputs
    y_RF = kernels.rows(
        _padded(x_RD),
        w,
        GroupRows.of(group_sizes_E, x_RD.shape[0]),
        is_transposed=is_transposed,
        block_sizes=_block_sizes(inputs).within(columns=w.shape[1 if is_transposed else 2]),
    )
    return y_RF[: x_RD.shape[0]]


def _padded(x_RD: Array) -> Array:
    """Return a multiple of 8 rows."""
    # Copies begin at multiples of 8 rows (`ALIGNED`); those that reach beyond the end are filled
    # with zeros by the hardware.
    return jnp.pad(x_RD, ((0, -x_RD.shape[0] % ALIGNED), (0, 0)))
