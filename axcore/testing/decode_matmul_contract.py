"""What `decode_matmul` promises: its contract, for kernels of it."""

from typing import Any

from jax import Array, lax

from axcore.ops.decode_matmul.contract import DECODE_MATMUL_TEST_CASES, DecodeMatmulTestCase
from axcore.ops.decode_matmul.kernels import decode_matmul_reference
from axcore.ops.decode_matmul.op import (
    DECODE_MATMUL_OP,
    DecodeMatmulInputs,
    DecodeMatmulSpec,
)
from axcore.testing.contracts import Case, OpContract

__all__ = ["DECODE_MATMUL", "DecodeMatmulTestCase", "decode_matmul_case"]


def _run(kernel: Any, inputs: DecodeMatmulInputs, spec: DecodeMatmulSpec) -> Array:
    """Run a kernel as one without gradients, which the op asks of none."""
    y_RN: Array = lax.stop_gradient(kernel(lax.stop_gradient(inputs), spec))
    return y_RN


def decode_matmul_case(sample: DecodeMatmulTestCase) -> Case:
    """Return the case of a sample."""
    return Case(name=sample.name, make=sample.make, call=DECODE_MATMUL_OP.call, run=_run)


DECODE_MATMUL = OpContract(
    op=DECODE_MATMUL_OP,
    reference=decode_matmul_reference,
    cases=tuple(decode_matmul_case(sample) for sample in DECODE_MATMUL_TEST_CASES),
)
