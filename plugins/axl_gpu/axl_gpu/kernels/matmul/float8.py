"""Products of float8 operands on Hopper GPUs by a kernel of our own, with scale and cast fused.

The matrix units read 8-bit operands only with what is summed over side by side, so an operand that
is stored otherwise is copied to that first, which is a quarter of the bytes of a float32 one.

Letters: R rows of the result, N columns of it, K what is summed over.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
from jax import Array

from axcore.ops import BlockSizeTable, Call, MatmulSpec, Operands, choose_block_sizes, power_of_two
from axcore.plugins import Hardware
from axl_gpu.kernels.matmul.block_sizes import MatmulBlockSizes, all_block_sizes
from axl_gpu.kernels.matmul.float8_kernel import float8_matmul_kernel

FORMATS = ("float8_e4m3fn", "float8_e5m2")
DEPTH = 128
"""What is summed at once: as many bytes as shared memory is swizzled over."""

Matmul = Callable[..., Array]
"""A function like `float8_matmul_kernel`."""


def default_block_sizes(call: Call, hardware: Hardware) -> MatmulBlockSizes:
    """Return the largest tiles that fit, with a result of up to four bytes a number."""
    # Results of four bytes take twice the staging, and leave room for one pair of tiles less.
    return MatmulBlockSizes(depth=DEPTH, num_ahead=2 if call.feature("dtype") == "float32" else 3)


def candidates(call: Call, hardware: Hardware) -> Iterator[MatmulBlockSizes]:
    """Yield what fits the shared memory of a Hopper."""
    size = jnp.dtype(str(call.feature("dtype"))).itemsize
    return all_block_sizes(depth=DEPTH, itemsize=1, result_itemsize=size)


def bucket(call: Call) -> dict[str, Any]:
    """Return which product it is, the sizes of the weights or of their gradient, and the dtype."""
    sizes = {
        f"{name}_{n}": power_of_two(size)
        for name in ("lhs", "rhs")
        for n, size in enumerate(call.shape(name)[-2:])
    }
    return {"product": call.feature("product"), "dtype": call.feature("dtype"), **sizes}


BLOCK_SIZES = BlockSizeTable(
    kernel="quantized_dot/gpu_float8_matmul",
    package=__package__,
    default=default_block_sizes,
    candidates=candidates,
    bucket=bucket,
)


def unsupported_reason(call: Call) -> str | None:
    """Return None where the kernel can serve the call, else the reason why not."""
    formats = {call.dtype("lhs"), call.dtype("rhs")}
    if not formats <= set(FORMATS):
        return f"multiplies float8, not {' and '.join(sorted(formats))}"
    # Mosaic GPU's `wgmma` takes one dtype for both sides. Gradients multiply e5m2 by e4m3, and so
    # are XLA's to serve.
    if len(formats) > 1:
        return f"multiplies operands of one format, not {' and '.join(sorted(formats))}"
    for side in ("lhs", "rhs"):
        if call.feature(f"{side}_per") != "tensor":
            return f"takes one scale per tensor, not one per {call.feature(f'{side}_per')}"
        if 0 in call.shape(side):
            return f"takes no empty array, not {side} {call.shape(side)}"
    return None


def gpu_float8_matmul(
    operands: Operands, spec: MatmulSpec, *, matmul: Matmul = float8_matmul_kernel
) -> Array:
    """Return the product, scaled and in the dtype that is asked for.

    Sums are the matrix units' own, which keep fewer bits of 8-bit products than float32 has; they
    are scaled in float32 and rounded once, in registers.

    Args:
        operands: Of a call that `unsupported_reason` takes.
        spec: What is summed over, and the result's dtype.
        matmul: The kernel, or what stands in for it where there is no GPU.
    """
    scale = (operands.lhs.scale * operands.rhs.scale).astype(jnp.float32)
    block_sizes = choose_block_sizes(BLOCK_SIZES, _call(operands, spec))
    sides = [(one.values, over) for one, over in zip(operands, spec.contracting, strict=True)]
    rows = [_rows(values, over) for values, over in sides]
    total_RN = matmul(*rows, scale, dtype=spec.dtype, block_sizes=block_sizes)
    return total_RN.reshape(
        *(n for x, over in sides for axis, n in enumerate(x.shape) if axis not in over)
    )


def _call(operands: Operands, spec: MatmulSpec) -> Call:
    arrays = {"lhs": operands.lhs.values, "rhs": operands.rhs.values}
    return Call.of("quantized_dot", arrays, {"product": spec.product, "dtype": spec.dtype})


def _rows(x: Array, contracting: tuple[int, ...]) -> Array:
    """Return an operand as rows, with what is summed over last."""
    free = tuple(axis for axis in range(x.ndim) if axis not in contracting)
    num_rows = math.prod(x.shape[axis] for axis in free)
    return jnp.transpose(x, (*free, *contracting)).reshape(num_rows, -1)
