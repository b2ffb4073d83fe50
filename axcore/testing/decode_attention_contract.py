"""What `decode_attention` promises: its contract, for kernels of it."""

from typing import Any

from jax import Array, lax

from axcore.ops.decode_attention.contract import DECODE_TEST_CASES, DecodeTestCase
from axcore.ops.decode_attention.kernels import decode_attention_reference
from axcore.ops.decode_attention.op import (
    DECODE_ATTENTION_OP,
    DecodeInputs,
    DecodeSpec,
)
from axcore.testing.contracts import Case, OpContract

__all__ = ["DECODE_ATTENTION", "DecodeTestCase", "decode_case"]


def _run(kernel: Any, inputs: DecodeInputs, spec: DecodeSpec) -> Array:
    """Run a kernel as one without gradients, which the op has none of."""
    o_BTNV: Array = lax.stop_gradient(kernel(lax.stop_gradient(inputs), spec))
    return o_BTNV


def decode_case(sample: DecodeTestCase) -> Case:
    """Return the case of a sample."""
    return Case(name=sample.name, make=sample.make, call=DECODE_ATTENTION_OP.call, run=_run)


DECODE_ATTENTION = OpContract(
    op=DECODE_ATTENTION_OP,
    reference=decode_attention_reference,
    cases=tuple(decode_case(sample) for sample in DECODE_TEST_CASES),
)
