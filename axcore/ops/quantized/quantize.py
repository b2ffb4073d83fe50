"""How arrays are quantized: formats and grains, the largest magnitude, a scale from it, rounding.

Integers get the finest scale that fits. Floats get a power of two: it costs no precision, since
they have an exponent of their own, and multiplying by it is exact in every float dtype.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import attrs
import jax
import jax.numpy as jnp
from jax import Array

from axcore.errors import KernelError

Format = Literal["int8", "float8_e4m3fn", "float8_e5m2"]
FORMATS: tuple[Format, ...] = ("int8", "float8_e4m3fn", "float8_e5m2")

MatmulRole = Literal["forward", "input_gradient", "weight_gradient"]
MATMULS: tuple[MatmulRole, ...] = ("forward", "input_gradient", "weight_gradient")

Contracting = tuple[tuple[int, ...], tuple[int, ...]]
"""Dimensions of the left and of the right operand that are summed over, in pairs."""


def _a_format(how: "Quantization", attribute: object, value: str) -> None:
    if value not in FORMATS:
        raise KernelError(
            f"quantized_dot: no format is named {value!r}; there are {', '.join(FORMATS)}."
        )


def _a_grain(how: "Quantization", attribute: object, value: str) -> None:
    if value not in ("channel", "tensor"):
        raise KernelError(
            f"quantized_dot: scales are per channel or per tensor, not per {value!r}."
        )


@attrs.frozen(kw_only=True)
class Quantization:
    """How one operand of a product is quantized.

    Args:
        format: The low-precision dtype.
        per: A scale for each channel, the slice that a product sums over, or one for all.
        is_stochastic: Rounds up as often as the fraction says; int8 only.

    Raises:
        KernelError: There is no such format, or it does not go with the other choices.
    """

    format: Format = attrs.field(validator=_a_format)
    per: Literal["channel", "tensor"] = attrs.field(validator=_a_grain)
    is_stochastic: bool = False

    def __attrs_post_init__(self) -> None:
        if self.is_stochastic and self.format != "int8":
            raise KernelError(
                f"quantized_dot: {self.format} is rounded to nearest.",
                hint="leave is_stochastic to int8",
            )


@attrs.frozen(kw_only=True)
class QuantizedDotSpec:
    """The static choices of one call: how each operand is quantized, wherever it is used.

    Args:
        inputs: For `x`, in the forward pass and in the weight's gradient.
        weights: For `w`, in the forward pass and in the input's gradient.
        gradients: For the output's gradient, in both others.
        weight_gradient: Whether the weight's gradient is a low-precision product as well.
    """

    inputs: Quantization
    weights: Quantization
    gradients: Quantization
    weight_gradient: bool = True


class Amaxes(NamedTuple):
    """Largest magnitudes to scale by instead of those at hand, which are then not waited for.

    All are float32 scalars. What is larger is clipped to the largest. `seen` has no part in the
    values: its gradient is the largest magnitude of the output's gradient, by which a caller learns
    of it. Several calls that share it add theirs up, which is never too small.
    """

    inputs: Array
    weights: Array
    gradients: Array
    seen: Array


class QuantizedArray(NamedTuple):
    """An array `values * scale`.

    `scale` is a float32 scalar, or has the dimensions of `values`, with 1 for those summed over.
    """

    values: Array
    scale: Array


class Operands(NamedTuple):
    """The arrays of one low-precision product."""

    lhs: QuantizedArray
    rhs: QuantizedArray


@attrs.frozen(kw_only=True)
class MatmulSpec:
    """The static choices of one low-precision product.

    Args:
        product: What it is for.
        contracting: What is summed over; the others remain, the left operand's first.
        dtype: Name of the dtype of the result.
    """

    product: MatmulRole
    contracting: Contracting
    dtype: str


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
    """Return `x` quantized for a product that sums over some of its axes.

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
        # The mean over keys is the number itself, so that small gradients survive on average.
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
    # A scale that is not finite would make NaN of all numbers of a tensor, where one is wrong.
    finite = jnp.where(jnp.isfinite(ratio), jnp.maximum(ratio, SMALLEST), 1.0)
    # Not `exp2(ceil(log2(x)))`: a rounded logarithm of a power of two may come out one too high
    # or too low.
    fraction, exponent = jnp.frexp(finite)  # the fraction is in [1/2, 1)
    return jnp.ldexp(jnp.float32(1.0), exponent - jnp.where(fraction == 0.5, 1, 0))
