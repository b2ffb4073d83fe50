"""RMS normalisation on Hopper GPUs by kernels of our own, forward and backward.

There is one form of them, which is both interpreted and compiled. Backward computes each row's mean
square again from `x`, which it reads anyway, so the forward pass leaves nothing but its inputs.

Letters: R rows, D width, P programs.
"""

from collections.abc import Callable, Iterator

import attrs
import jax.numpy as jnp
from jax import Array

from axcore.ops import BlockSizeTable, Call, RmsNormInputs, RmsNormSpec, choose_block_sizes
from axcore.plugins import Hardware
from axl_gpu.kernels.rms_norm.kernels import backward_rows, forward_rows

DTYPES = ("bfloat16", "float16", "float32")
WIDTHS = 256
"""The width is a multiple of it: two numbers for each thread of a warp group."""

MAX_WIDTH = 8192
"""Wider rows do not fit the registers of a warp group."""


@attrs.frozen(kw_only=True)
class RmsNormBlockSizes:
    """The sizes that the kernels work in.

    Args:
        rows: Rows that a program works on, one after another.
        backward_rows: The same in the backward pass, which writes a row for each program.
    """

    rows: int
    backward_rows: int


def default_block_sizes(call: Call, hardware: Hardware) -> RmsNormBlockSizes:
    """Return sizes that give each multiprocessor several programs at usual sizes."""
    # More rows backward: each program leaves a row of float32 that has to be read again and
    # summed.
    return RmsNormBlockSizes(rows=4, backward_rows=16)


def candidates(call: Call, hardware: Hardware) -> Iterator[RmsNormBlockSizes]:
    """Yield what may be fastest."""
    for rows in (1, 2, 4, 8, 16):
        yield RmsNormBlockSizes(rows=rows, backward_rows=4 * rows)


BLOCK_SIZES = BlockSizeTable(
    kernel="rms_norm/gpu_rms_norm",
    package=__package__,
    default=default_block_sizes,
    candidates=candidates,
    bucket=lambda call: {"width": call.shape("x")[-1], "dtype": call.dtype("x")},
)


def unsupported_reason(call: Call) -> str | None:
    """Return None where the kernels can serve the call, else the reason why not."""
    for name in ("x", "scale"):
        if call.has(name) and call.dtype(name) not in DTYPES:
            return f"takes {name} of {', '.join(DTYPES)}, not {call.dtype(name)}"
    if 0 in call.shape("x"):
        return f"takes no empty array, not x {call.shape('x')}"
    width = call.shape("x")[-1]
    if width % WIDTHS or width > MAX_WIDTH:
        return f"takes widths that are multiples of {WIDTHS} up to {MAX_WIDTH}, not {width}"
    return None


def gpu_rms_norm(
    inputs: RmsNormInputs, spec: RmsNormSpec, *, kernel: Callable[..., Array] = forward_rows
) -> Array:
    """Return the normalised `x` in its dtype; all arithmetic is float32.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: The call's static choices.
        kernel: The kernel, or what stands in for it where there is no GPU.
    """
    arrays, rows = _rows_and_factor(inputs, spec), _block_sizes(inputs).rows
    return kernel(*arrays, epsilon=spec.epsilon, rows=rows).reshape(inputs.x.shape)


def gpu_rms_norm_backward(
    inputs: RmsNormInputs,
    spec: RmsNormSpec,
    *,
    dy: Array,
    kernel: Callable[..., tuple[Array, Array]] = backward_rows,
) -> RmsNormInputs:
    """Return the gradients; that of the scale is float32.

    Reads `x` and the result's gradient, and writes the gradient of `x` and, for each program, a row
    that is summed up to the gradient of the scale.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: The call's static choices.
        dy: The gradient of the result.
        kernel: The kernel, or what stands in for it where there is no GPU.
    """
    arrays, rows = _rows_and_factor(inputs, spec), _block_sizes(inputs).backward_rows
    dy_RD = dy.reshape(-1, dy.shape[-1])
    dx_RD, dfactor_PD = kernel(*arrays, dy_RD, epsilon=spec.epsilon, rows=rows)
    # Summed outside, in a fixed order; atomic additions would change the last bits from run to
    # run.
    dscale_D = None if inputs.scale is None else jnp.sum(dfactor_PD, axis=0)
    return RmsNormInputs(dx_RD.reshape(inputs.x.shape), dscale_D)


def _rows_and_factor(inputs: RmsNormInputs, spec: RmsNormSpec) -> tuple[Array, Array]:
    x, scale_D = inputs
    factor_D = jnp.ones(x.shape[-1:])
    if scale_D is not None:
        factor_D = spec.scale_offset + scale_D.astype(jnp.float32)
    return x.reshape(-1, x.shape[-1]), factor_D


def _block_sizes(inputs: RmsNormInputs) -> RmsNormBlockSizes:
    return choose_block_sizes(BLOCK_SIZES, Call.of("rms_norm", {"x": inputs.x}, {}))
