"""What `rope` promises: its contract, for kernels of it."""

from typing import Any

from axcore.ops.rope.contract import ROPE_TEST_CASES, RopeTestCase
from axcore.ops.rope.kernels import rope_reference
from axcore.ops.rope.op import ROPE_OP, RopeInputs, RopeSpec, rope_custom_vjp
from axcore.testing.contracts import Case, OpContract

__all__ = ["ROPE", "RopeTestCase", "rope_case"]


def _run(function: Any, inputs: RopeInputs, spec: RopeSpec) -> Any:
    """Run the op with the kernel for the gradient, too."""
    return rope_custom_vjp(inputs, spec, forward=function)


def rope_case(sample: RopeTestCase) -> Case:
    """Return the case of a sample."""
    return Case(name=sample.name, make=sample.make, call=ROPE_OP.call, run=_run)


ROPE = OpContract(
    op=ROPE_OP,
    reference=rope_reference,
    cases=tuple(rope_case(sample) for sample in ROPE_TEST_CASES),
    model_cases=tuple(
        rope_case(RopeTestCase(name=f"heads_{heads}", tokens=4096, heads=heads, width=128))
        for heads in (8, 32)
    ),
)
