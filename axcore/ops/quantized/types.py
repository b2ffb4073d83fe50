"""What a quantized product is made of.

Letters: R all leading dimensions of the input, K the width that the forward pass sums over, N the
width of the output.
"""

from typing import Literal, NamedTuple

import attrs
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
    """How one operand of a product is made narrow.

    Args:
        format: The narrow dtype.
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
    """The static choices of one call: how each operand is made narrow, wherever it is used.

    Args:
        inputs: For `x`, in the forward pass and in the weight's gradient.
        weights: For `w`, in the forward pass and in the input's gradient.
        gradients: For the output's gradient, in both others.
        weight_gradient: Whether the weight's gradient is a narrow product as well.
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
    """The arrays of one narrow product."""

    lhs: QuantizedArray
    rhs: QuantizedArray


@attrs.frozen(kw_only=True)
class MatmulSpec:
    """The static choices of one narrow product.

    Args:
        product: What it is for.
        contracting: What is summed over; the others remain, the left operand's first.
        dtype: Name of the dtype of the result.
    """

    product: MatmulRole
    contracting: Contracting
    dtype: str
