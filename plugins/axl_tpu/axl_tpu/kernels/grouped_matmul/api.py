"""The grouped matrix product on TPU by Pallas kernels of our own, forward and backward.

Rows stay as they are: nothing is padded or copied, and rows of no group are made zero by the kernel
that writes the others.

Letters: R rows, E groups, D input width, F output width.
"""

from typing import Any, cast

from jax import Array

from axcore.ops import Call, GroupedMatmulInputs, choose_block_sizes
from axl_tpu.kernels.grouped_matmul.block_sizes import BLOCK_SIZES, GroupedBlockSizes
from axl_tpu.kernels.grouped_matmul.matrix_gradients import matrices_gradient
from axl_tpu.kernels.grouped_matmul.rows import rows_matmul

DTYPES = ("bfloat16", "float32")
MAX_SCHEDULE_STEPS = 2**16
"""Blocks of rows and groups whose list fits scalar memory."""
SMALLEST_BLOCK = 128


def unsupported_reason(call: Call) -> str | None:
    """Return None where the kernels can serve the call, else the reason why not."""
    if call.dtype("x") not in DTYPES:
        return f"takes bfloat16 and float32, not {call.dtype('x')}"
    if 0 in (*call.shape("x"), *call.shape("w")):
        return f"takes no empty array, not x {call.shape('x')} and w {call.shape('w')}"
    num_schedule_steps = call.shape("x")[0] // SMALLEST_BLOCK + call.shape("w")[0]
    if num_schedule_steps > MAX_SCHEDULE_STEPS:
        return (
            f"takes up to {MAX_SCHEDULE_STEPS} blocks of rows and groups, not {num_schedule_steps}"
        )
    return None


def tpu_grouped_matmul(
    inputs: GroupedMatmulInputs, spec: None = None, *, interpret: Any = False
) -> Array:
    """Return `y_RF`; sums are float32.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: None: the op has no choices.
        interpret: Runs the kernel by an interpreter, on any device.
    """
    return rows_matmul(*inputs, _block_sizes(inputs), is_transposed=False, interpret=interpret)


def tpu_grouped_matmul_backward(
    inputs: GroupedMatmulInputs, spec: None = None, *, dy_RF: Array, interpret: Any = False
) -> GroupedMatmulInputs:
    """Return the gradients of rows and matrices; sums are float32.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: None: the op has no choices.
        dy_RF: The gradient of the output.
        interpret: Runs the kernels by an interpreter, on any device.
    """
    x_RD, w_EDF, sizes_E = inputs
    block_sizes = _block_sizes(inputs)
    dx_RD = rows_matmul(dy_RF, w_EDF, sizes_E, block_sizes, is_transposed=True, interpret=interpret)
    dw_EDF = matrices_gradient(
        x_RD, dy_RF, sizes_E, block_sizes, dtype=w_EDF.dtype, interpret=interpret
    )
    return GroupedMatmulInputs(dx_RD, dw_EDF, cast(Array, None))


def _block_sizes(inputs: GroupedMatmulInputs) -> GroupedBlockSizes:
    call = Call.of("grouped_matmul", {"x": inputs.x_RD, "w": inputs.w_EDF}, {})
    return choose_block_sizes(BLOCK_SIZES, call)
