"""Test cases of RMS normalisation: any rank, with and without a scale, large and small rows."""

import attrs
import jax.numpy as jnp
from jax.typing import DTypeLike

from axcore.ops.contract import (
    DIM,
    ROWS,
    TOKENS,
    backward_call,
    case_numbers,
    spec_array,
    traced_call,
)
from axcore.ops.dispatch import Call
from axcore.ops.rms_norm.op import RMS_NORM_OP, RmsNormInputs, RmsNormSpec


@attrs.frozen(kw_only=True)
class RmsNormTestCase:
    """A recipe for a call: sizes, the scale's dtype (none without one) and static choices."""

    name: str
    shape: tuple[int, ...] = (3, 5, 24)
    scale_dtype: str | None = "float32"
    epsilon: float = 1e-6
    scale_offset: float = 0.0

    def make(self, dtype: DTypeLike = jnp.float32) -> tuple[RmsNormInputs, RmsNormSpec]:
        """Return the call, equal each time."""
        numbers = case_numbers(self.name)
        sizes = 10.0 ** numbers.uniform(-1.0, 2.0, (*self.shape[:-1], 1))
        x = jnp.asarray((numbers.standard_normal(self.shape) * sizes).astype(dtype))
        scale = None
        if self.scale_dtype is not None:
            scale = jnp.asarray(numbers.standard_normal(self.shape[-1:]).astype(self.scale_dtype))
        spec = RmsNormSpec(epsilon=self.epsilon, scale_offset=self.scale_offset)
        return RmsNormInputs(x, scale), spec


RMS_NORM_TEST_CASES = (
    RmsNormTestCase(name="plain"),
    RmsNormTestCase(name="one_row", shape=(24,)),
    RmsNormTestCase(name="odd_width", shape=(5, 7)),
    RmsNormTestCase(name="no_scale", scale_dtype=None),
    RmsNormTestCase(name="quantized_scale", scale_dtype="bfloat16"),
    RmsNormTestCase(name="offset", scale_offset=1.0),
    RmsNormTestCase(name="large_epsilon", epsilon=0.5),
)


def arg_spec() -> Call:
    """Return the norm of all tokens."""
    return traced_call(
        lambda: RMS_NORM_OP.call(
            RmsNormInputs(spec_array(ROWS, TOKENS, DIM), spec_array(DIM)),
            RmsNormSpec(epsilon=1e-5),
        )
    )


def backward_arg_spec() -> Call:
    """Return the gradient of the norm."""
    return backward_call(arg_spec())
