"""Test cases of the quantized dot: each format, odd sizes, channels of zeros, given amaxes."""

from typing import NamedTuple

import attrs
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from axcore.ops.contract import case_numbers
from axcore.ops.quantized.quantize import Amaxes, Quantization, QuantizedDotSpec

INT8_CHANNELS = Quantization(format="int8", per="channel")
INT8 = QuantizedDotSpec(inputs=INT8_CHANNELS, weights=INT8_CHANNELS, gradients=INT8_CHANNELS)
E4M3 = Quantization(format="float8_e4m3fn", per="tensor")
E5M2 = Quantization(format="float8_e5m2", per="tensor")
FLOAT8 = QuantizedDotSpec(inputs=E4M3, weights=E4M3, gradients=E5M2)


class QuantizedDotInputs(NamedTuple):
    """The arrays of one call."""

    x_RK: Array
    w_KN: Array
    amaxes: Amaxes | None


@attrs.frozen(kw_only=True)
class QuantizedDotTestCase:
    """A recipe for a call: sizes and static choices.

    Args:
        name: Unique among the samples.
        spec: The call's own.
        leading: Leading dimensions of x.
        width: Width that is summed over.
        out_width: Width of the output.
        has_zeros: Whether a row of x, a column of w and one of x are all zeros.
        has_amaxes: Whether it scales by given magnitudes, that of x too small.
    """

    name: str
    spec: QuantizedDotSpec
    leading: tuple[int, ...] = (3, 7)
    width: int = 16
    out_width: int = 12
    has_zeros: bool = False
    has_amaxes: bool = False

    def make(self, dtype: DTypeLike = jnp.float32) -> tuple[QuantizedDotInputs, QuantizedDotSpec]:
        """Return the call, equal each time."""
        numbers = case_numbers(self.name)
        x = numbers.standard_normal((*self.leading, self.width))
        w = numbers.standard_normal((self.width, self.out_width)) / np.sqrt(self.width)
        if self.has_zeros:
            x.reshape(-1, self.width)[0] = 0
            x[..., 1] = 0
            w[:, 2] = 0
        amaxes = [2.0, 1.5, 1.0, 0.0] if self.has_amaxes else None
        given = Amaxes(*(jnp.float32(one) for one in amaxes)) if amaxes else None
        return QuantizedDotInputs(jnp.asarray(x, dtype), jnp.asarray(w, dtype), given), self.spec


def _test_cases(name: str, spec: QuantizedDotSpec) -> tuple[QuantizedDotTestCase, ...]:
    def case(suffix: str, **choices: object) -> QuantizedDotTestCase:
        return QuantizedDotTestCase(name=name + suffix, **{"spec": spec, **choices})  # type: ignore[arg-type]

    return (
        case(""),
        case("_odd", leading=(5,), width=37, out_width=3),
        case("_one_row", leading=(1,)),
        case("_zeros", has_zeros=True),
        case("_wide_weight_gradient", spec=attrs.evolve(spec, weight_gradient=False)),
    )


QUANTIZED_DOT_TEST_CASES = (
    *_test_cases("int8", INT8),
    *_test_cases("float8", FLOAT8),
    QuantizedDotTestCase(name="float8_delayed", spec=FLOAT8, has_amaxes=True),
)
