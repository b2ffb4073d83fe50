"""Kernels of `quantized_dot`: products of two low-precision operands, scaled to full precision.

A kernel is a function `(operands, spec) -> array` that is not differentiated: the op knows the
gradients.
"""

import jax.numpy as jnp
from jax import Array, lax

from axcore.ops.dispatch import Call
from axcore.ops.quantized.quantize import Contracting, MatmulSpec, Operands, QuantizedArray


def int8_matmul(operands: Operands, spec: MatmulSpec) -> Array:
    """Return the product of int8 operands, summed in int32."""
    return _scaled(_dot(operands, spec, jnp.int32).astype(jnp.float32), operands, spec)


def float8_matmul(operands: Operands, spec: MatmulSpec) -> Array:
    """Return the product of float8 operands, summed in float32.

    The result is asked for in its own dtype, so that no wider one is written to memory: compilers
    take the factor, a power of two, into the product. Float16 lacks the range for it.
    """
    total = jnp.float32 if spec.dtype == "float16" else jnp.dtype(spec.dtype)
    return _scaled(_dot(operands, spec, total), operands, spec)


def emulated_matmul(operands: Operands, spec: MatmulSpec) -> Array:
    """Return the product of any low-precision operands, converted back and summed in float32.

    It defines what the op means. It saves neither time nor memory.
    """
    # Some of XLA's compilers drop a cast to a low-precision float and back: then nothing is
    # rounded.
    kept = lax.optimization_barrier(operands)  # type: ignore[no-untyped-call]
    wide = Operands(*(QuantizedArray(one.values.astype(jnp.float32), one.scale) for one in kept))
    return _scaled(_dot(wide, spec, jnp.float32, precision=lax.Precision.HIGHEST), operands, spec)


def int8_unsupported_reason(call: Call) -> str | None:
    """Say why a product is not one of int8."""
    dtypes = {call.dtype("lhs"), call.dtype("rhs")}
    return None if dtypes == {"int8"} else f"multiplies int8, not {' and '.join(sorted(dtypes))}"


def float8_unsupported_reason(call: Call) -> str | None:
    """Say why a product is not one of float8 that matrix units know."""
    dtypes = {call.dtype("lhs"), call.dtype("rhs")}
    if not dtypes <= {"float8_e4m3fn", "float8_e5m2"}:
        return f"multiplies float8, not {' and '.join(sorted(dtypes))}"
    if dtypes == {"float8_e5m2"}:
        return "multiplies no float8_e5m2 by another"
    return None


def _dot(operands: Operands, spec: MatmulSpec, dtype: object, precision: object = None) -> Array:
    return lax.dot_general(
        operands.lhs.values,
        operands.rhs.values,
        (spec.contracting, ((), ())),
        precision=precision,  # type: ignore[arg-type]
        preferred_element_type=dtype,  # type: ignore[arg-type]
    )


def _scaled(total: Array, operands: Operands, spec: MatmulSpec) -> Array:
    lhs, rhs = operands
    if lhs.scale.ndim == rhs.scale.ndim == 0:
        # In the total's own dtype: scales per tensor of float8 are powers of two, by which no bit
        # is lost, and sums of int8 are float32 here.
        scaled = total * (lhs.scale * rhs.scale).astype(total.dtype)
    else:
        scaled = total.astype(jnp.float32) * _spread(lhs.scale, spec.contracting, total.ndim, 0)
        scaled = scaled * _spread(rhs.scale, spec.contracting, total.ndim, 1)
    return scaled.astype(spec.dtype)


def _spread(scale: Array, contracting: Contracting, ndim: int, side: int) -> Array:
    """Return a scale in the place of its operand's dimensions in the result."""
    if scale.ndim == 0:
        return scale
    free = [size for axis, size in enumerate(scale.shape) if axis not in contracting[side]]
    others = [1] * (ndim - len(free))
    return scale.reshape(others + free if side else free + others)
