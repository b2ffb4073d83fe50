"""What `quantized_dot` promises: its contract, for kernels of narrow products."""

from typing import Any

from axcore.ops.call import Call
from axcore.ops.quantized_dot_calls import product_calls
from axcore.ops.quantized_dot_kernels import emulated_product
from axcore.ops.quantized_dot_samples import QUANTIZED_DOT_SAMPLES
from axcore.ops.quantized_dot_types import PRODUCTS, QuantizedDotSpec
from axcore.ops.quantized_dot_vjp import dot_from_products
from axcore.testing.contracts import Case, OpContract


def _forward_call(inputs: Any, spec: QuantizedDotSpec) -> Call:
    return product_calls(inputs.x_RK.shape, inputs.w_KN.shape, spec, dtype=inputs.x_RK.dtype.name)[
        "forward"
    ]


def _run(kernel: Any, inputs: Any, spec: QuantizedDotSpec) -> Any:
    """Runs the op with the kernel for all three products, the gradients' included."""
    kernels = dict.fromkeys(PRODUCTS, kernel)
    return dot_from_products(inputs.x_RK, inputs.w_KN, spec, kernels, amaxes=inputs.amaxes)


QUANTIZED_DOT = OpContract(
    reference=emulated_product,
    cases=tuple(
        Case(name=sample.name, make=sample.make, call=_forward_call, run=_run)
        for sample in QUANTIZED_DOT_SAMPLES
    ),
)
