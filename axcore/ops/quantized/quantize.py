"""Making an array narrow: its largest magnitude, a scale from it, and rounding.

Integers get the finest scale that fits. Floats get a power of two: it costs no precision, since
they have an exponent of their own, and multiplying by it is exact in every float dtype.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

from axcore.ops.quantized.types import Quantization, QuantizedArray

INT8_LARGEST = 127
INT32_LARGEST = 2**31 - 1
FLOAT8_LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
SMALLEST = 2.0**-126
"""Scales are not below the smallest normal float32, so that nothing is divided by zero."""


def amax_of(x: Array, axes: Sequence[int] | None = None) -> Array:
    """Return the largest magnitude, in float32: of all, or along axes, which stay with size 1."""
    magnitudes = jnp.abs(x.astype(jnp.float32))
    if axes is None:
        return jnp.max(magnitudes, initial=0.0)
    return jnp.max(magnitudes, axis=tuple(axes), keepdims=True, initial=0.0)


def quantized(
    x: Array,
    how: Quantization,
    axes: Sequence[int],
    *,
    amax: Array | None = None,
    key: Array | None = None,
) -> QuantizedArray:
    """Return `x` made narrow for a product that sums over some of its axes.

    Args:
        x: A float array.
        how: Format, grain and rounding.
        axes: The axes that are summed over.
        amax: Scalar to scale by; the largest magnitude of a channel or of `x` where None.
        key: Random key data for stochastic rounding; to nearest where None.
    """
    if amax is None:
        amax = amax_of(x, axes if how.per == "channel" else None)
    if how.format == "int8":
        return _as_int8(x, amax, _num_levels(x, axes), key if how.is_stochastic else None)
    return _as_float8(x, amax, how.format)


def _num_levels(x: Array, axes: Sequence[int]) -> int:
    """Return the largest integer used: sums of so many products of two never leave int32.

    That is 127 for sums of up to 133,152 products.
    """
    num_products = max(1, math.prod(x.shape[axis] for axis in axes))
    return max(1, min(INT8_LARGEST, math.isqrt(INT32_LARGEST // num_products)))


def _as_int8(x: Array, amax: Array, largest: int, key: Array | None) -> QuantizedArray:
    scale = jnp.maximum(amax / largest, SMALLEST)
    steps = x.astype(jnp.float32) / scale
    if key is None:
        rounded = jnp.round(steps)
    else:
        rounded = jnp.floor(steps + jax.random.uniform(jax.random.wrap_key_data(key), x.shape))
    return QuantizedArray(jnp.clip(rounded, -largest, largest).astype(jnp.int8), scale)


def _as_float8(x: Array, amax: Array, dtype: str) -> QuantizedArray:
    largest = FLOAT8_LARGEST[dtype]
    scale = _power_of_two_from(amax / largest)
    steps = jnp.clip(x.astype(jnp.float32) / scale, -largest, largest)
    # Clipped, an infinity would pass for a number, and nobody would see that a step went wrong.
    kept = jnp.where(jnp.isfinite(x), steps, jnp.nan)
    return QuantizedArray(kept.astype(dtype), scale)


def _power_of_two_from(ratio: Array) -> Array:
    """Return the smallest power of two that is not below `ratio`, in float32."""
    finite = jnp.where(jnp.isfinite(ratio), jnp.maximum(ratio, SMALLEST), 1.0)
    fraction, exponent = jnp.frexp(finite)  # the fraction is in [1/2, 1)
    return jnp.ldexp(jnp.float32(1.0), exponent - jnp.where(fraction == 0.5, 1, 0))
