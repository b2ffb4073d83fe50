"""Test cases of rotary positions: heads of several widths, one head and many, uneven lengths."""

import attrs
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from axcore.ops.dispatch.case_numbers import case_numbers
from axcore.ops.rope.types import RopeInputs, RopeSpec


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
