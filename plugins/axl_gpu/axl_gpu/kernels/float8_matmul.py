"""Products of float8 operands on Hopper GPUs by a kernel of our own, with scale and cast fused.

The matrix units read 8-bit operands only with what is summed over side by side, so an operand that
is stored otherwise is copied to that first, which is a quarter of the bytes of a float32 one.

Letters: R rows of the result, N columns of it, K what is summed over.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array

from axcore.ops import Call, Operands, ProductSpec, TileTable, choose_tiles, power_of_two
from axcore.parallel import rows_on_each_device, summed_over_devices
from axcore.plugins import Hardware
from axl_gpu.kernels.float8_kernels import float8_matmul
from axl_gpu.kernels.matmul_tiles import MatmulTiles, all_tiles

FORMATS = ("float8_e4m3fn", "float8_e5m2")
DEPTH = 128
"""What is summed at once: as many bytes as shared memory is swizzled over."""

SUMMED = "float32"
"""Dtype of results that are still to be summed over devices: gradients of weights."""

Matmul = Callable[..., Array]
"""A function like `float8_matmul`."""


def default_tiles(call: Call, hardware: Hardware) -> MatmulTiles:
    """Returns the largest tiles that fit, with a result of up to four bytes a number."""
    return MatmulTiles(depth=DEPTH, num_ahead=2 if _dtype_of(call) == "float32" else 3)


def candidates(call: Call, hardware: Hardware) -> Iterator[MatmulTiles]:
    """Yields what fits the shared memory of a Hopper."""
    size = jnp.dtype(_dtype_of(call)).itemsize
    return all_tiles(depth=DEPTH, itemsize=1, result_itemsize=size)


def bucket(call: Call) -> dict[str, Any]:
    """Returns which product it is, the sizes of the weights or of their gradient, and the dtype."""
    sizes = {
        f"{name}_{n}": power_of_two(size)
        for name in ("lhs", "rhs")
        for n, size in enumerate(call.shape(name)[-2:])
    }
    return {"product": call.feature("product"), "dtype": call.feature("dtype"), **sizes}


TILES = TileTable(
    kernel="quantized_dot/gpu_float8_matmul",
    package="axl_gpu.kernels",
    default=default_tiles,
    candidates=candidates,
    bucket=bucket,
)


def accepts(call: Call) -> str | None:
    """Returns None where the kernel can serve the call, else the reason why not."""
    formats = {call.dtype("lhs"), call.dtype("rhs")}
    if not formats <= set(FORMATS):
        return f"multiplies float8, not {' and '.join(sorted(formats))}"
    if len(formats) > 1:
        return f"multiplies operands of one format, not {' and '.join(sorted(formats))}"
    for side in ("lhs", "rhs"):
        if call.feature(f"{side}_per") != "tensor":
            return f"takes one scale per tensor, not one per {call.feature(f'{side}_per')}"
        if 0 in call.shape(side):
            return f"takes no empty array, not {side} {call.shape(side)}"
    return None


def gpu_float8_matmul(
    operands: Operands, spec: ProductSpec, *, matmul: Matmul = float8_matmul
) -> Array:
    """Returns the product, scaled and in the dtype that is asked for.

    Sums are the matrix units' own, which keep fewer bits of 8-bit products than float32 has; they
    are scaled in float32 and rounded once, in registers.

    Args:
        operands: Of a call that `accepts` takes.
        spec: What is summed over, and the result's dtype.
        matmul: The kernel, or what stands in for it where there is no GPU.
    """
    scale = (operands.lhs.scale * operands.rhs.scale).astype(jnp.float32)
    tiles = choose_tiles(TILES, _call(operands, spec))

    def product(lhs: Array, rhs: Array, scale: Array, *, dtype: str = spec.dtype) -> Array:
        axes = spec.contracting
        free = [
            tuple(size for axis, size in enumerate(one.shape) if axis not in over)
            for one, over in zip((lhs, rhs), axes, strict=True)
        ]
        total_RN = matmul(_rows(lhs, axes[0]), _rows(rhs, axes[1]), scale, dtype=dtype, tiles=tiles)
        return total_RN.reshape(*free[0], *free[1])

    lhs, rhs = operands.lhs.values, operands.rhs.values
    if spec.product == "weight_gradient":
        wide = partial(product, dtype=SUMMED)
        return summed_over_devices(wide, (lhs, rhs), scale).astype(spec.dtype)
    return rows_on_each_device(product, lhs, rhs, scale)


def _dtype_of(call: Call) -> str:
    """Returns the dtype of what the kernel writes."""
    product, dtype = call.feature("product"), call.feature("dtype")
    return SUMMED if product == "weight_gradient" else str(dtype)


def _call(operands: Operands, spec: ProductSpec) -> Call:
    arrays = {"lhs": operands.lhs.values, "rhs": operands.rhs.values}
    return Call.of("quantized_dot", arrays, {"product": spec.product, "dtype": spec.dtype})


def _rows(x: Array, contracting: tuple[int, ...]) -> Array:
    """Returns an operand as rows, with what is summed over last."""
    free = tuple(axis for axis in range(x.ndim) if axis not in contracting)
    num_rows = math.prod(x.shape[axis] for axis in free)
    return jnp.transpose(x, (*free, *contracting)).reshape(num_rows, -1)
