"""Test cases of cross-entropy: odd sizes, tokens without weight, and every choice."""

from collections.abc import Mapping
from typing import Any

import attrs
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from axcore.ops.contract import (
    DIM,
    ROWS,
    TOKENS,
    VOCAB,
    backward_call,
    case_numbers,
    spec_array,
    traced_call,
)
from axcore.ops.cross_entropy.op import CROSS_ENTROPY_OP
from axcore.ops.cross_entropy.sharding import CrossEntropyInputs, CrossEntropySpec
from axcore.ops.dispatch import Call


@attrs.frozen(kw_only=True)
class CrossEntropyTestCase:
    """A recipe for a call: sizes and static choices; `w` is of x's dtype where not given."""

    name: str
    leading: tuple[int, ...] = (3, 19)
    width: int = 8
    vocabulary: int = 50
    w_dtype: str | None = None
    spec: Mapping[str, Any] = attrs.field(factory=dict)

    def make(self, dtype: DTypeLike = jnp.float32) -> tuple[CrossEntropyInputs, CrossEntropySpec]:
        """Return the call, equal each time; a third of the tokens weigh nothing."""
        numbers = case_numbers(self.name)
        spec = CrossEntropySpec(**self.spec)
        w_shape = (self.width, self.vocabulary)[:: -1 if spec.vocabulary_first else 1]
        x = numbers.standard_normal((*self.leading, self.width)).astype(dtype)
        w = numbers.standard_normal(w_shape).astype(self.w_dtype or dtype)
        targets = numbers.integers(0, self.vocabulary, self.leading).astype(np.int32)
        weights = np.maximum(numbers.uniform(-0.5, 1.0, self.leading), 0.0).astype(np.float32)
        return CrossEntropyInputs(*map(jnp.asarray, (x, w, targets, weights))), spec


CROSS_ENTROPY_TEST_CASES = (
    CrossEntropyTestCase(name="plain"),
    CrossEntropyTestCase(name="one_token", leading=(1, 1)),
    CrossEntropyTestCase(name="no_batch", leading=(19,)),
    CrossEntropyTestCase(name="two_batches", leading=(2, 3, 7)),
    CrossEntropyTestCase(name="tied", spec={"vocabulary_first": True}),
    CrossEntropyTestCase(name="wide_projection", w_dtype="float32"),
    CrossEntropyTestCase(name="z_loss", spec={"z_loss": 0.1}),
    CrossEntropyTestCase(name="soft_cap", spec={"soft_cap": 3.0}),
    CrossEntropyTestCase(
        name="everything", spec={"vocabulary_first": True, "z_loss": 0.1, "soft_cap": 3.0}
    ),
)


def arg_spec() -> Call:
    """Return the loss of all tokens, with float32 weights of the head."""

    def call() -> Call:
        inputs = CrossEntropyInputs(
            spec_array(ROWS, TOKENS, DIM),
            spec_array(DIM, VOCAB, dtype=jnp.float32),
            spec_array(ROWS, TOKENS, dtype=jnp.int32),
            spec_array(ROWS, TOKENS, dtype=jnp.float32),
        )
        return CROSS_ENTROPY_OP.call(inputs, CrossEntropySpec())

    return traced_call(call)


def backward_arg_spec() -> Call:
    """Return the gradient of the loss."""
    return backward_call(arg_spec())
