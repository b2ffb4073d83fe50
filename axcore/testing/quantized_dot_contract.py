"""What `quantized_dot` promises: its contract, for kernels of low-precision products."""

from typing import Any

from axcore.ops.dispatch import Call
from axcore.ops.quantized.contract import QUANTIZED_DOT_TEST_CASES
from axcore.ops.quantized.kernels import emulated_matmul
from axcore.ops.quantized.op import QUANTIZED_DOT_OP, matmul_calls
from axcore.ops.quantized.quantize import MATMULS, QuantizedDotSpec
from axcore.ops.quantized.vjp import quantized_custom_vjp
from axcore.testing.contracts import Case, OpContract


def _forward_call(inputs: Any, spec: QuantizedDotSpec) -> Call:
    return matmul_calls(inputs.x_RK.shape, inputs.w_KN.shape, spec, dtype=inputs.x_RK.dtype.name)[
        "forward"
    ]


def _run(kernel: Any, inputs: Any, spec: QuantizedDotSpec) -> Any:
    """Run the op with the kernel for all three products, the gradients' included."""
    kernels = dict.fromkeys(MATMULS, kernel)
    return quantized_custom_vjp(inputs.x_RK, inputs.w_KN, spec, kernels, amaxes=inputs.amaxes)


QUANTIZED_DOT = OpContract(
    op=QUANTIZED_DOT_OP,
    reference=emulated_matmul,
    cases=tuple(
        Case(name=sample.name, make=sample.make, call=_forward_call, run=_run)
        for sample in QUANTIZED_DOT_TEST_CASES
    ),
)
