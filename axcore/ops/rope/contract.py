"""Test cases of rotary positions: heads of several widths, one head and many, uneven lengths."""

import attrs
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from axcore.ops.contract import HEAD_DIM, HEADS, ROWS, TOKENS, case_numbers, spec_array, traced_call
from axcore.ops.dispatch import Call
from axcore.ops.rope.op import ROPE_OP, RopeInputs, RopeSpec


@attrs.frozen(kw_only=True)
class RopeTestCase:
    """A recipe for a call."""

    name: str
    batch: int = 2
    tokens: int = 37
    heads: int = 4
    width: int = 16
    amplitude: float = 1.0

    def make(self, dtype: DTypeLike = jnp.float32) -> tuple[RopeInputs, RopeSpec]:
        """Return the call, equal each time."""
        numbers = case_numbers(self.name)
        shape = (self.batch, self.tokens, self.heads, self.width)
        x = jnp.asarray(numbers.standard_normal(shape).astype(dtype))
        angles = numbers.uniform(-4.0, 4.0, (*shape[:2], self.width // 2))
        cos, sin = (
            jnp.asarray((self.amplitude * one(angles)).astype("float32"))
            for one in (np.cos, np.sin)
        )
        return RopeInputs(x, cos, sin), RopeSpec()


ROPE_TEST_CASES = (
    RopeTestCase(name="plain"),
    RopeTestCase(name="amplitude", amplitude=1.25),
    RopeTestCase(name="one_head", heads=1, width=8),
    RopeTestCase(name="one_token", tokens=1),
    RopeTestCase(name="width_64", width=64, heads=3),
    RopeTestCase(name="width_128", width=128, heads=6),
    RopeTestCase(name="width_256", width=256, tokens=70),
)


def arg_spec() -> Call:
    """Return the rotation of all queries."""

    def call() -> Call:
        angles = spec_array(ROWS, TOKENS, HEAD_DIM // 2, dtype=jnp.float32)
        queries = spec_array(ROWS, TOKENS, HEADS, HEAD_DIM)
        return ROPE_OP.call(RopeInputs(queries, angles, angles), RopeSpec())

    return traced_call(call)
