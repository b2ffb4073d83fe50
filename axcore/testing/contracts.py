"""What each op promises, as cases with a reference: `KernelSuite` proves kernels by it."""

from collections.abc import Callable
from typing import Any

import attrs
import jax
import jax.numpy as jnp
from jax import Array, lax

from axcore.errors import PluginError
from axcore.ops.attention.blockwise import blockwise_backward
from axcore.ops.attention.contract import ATTENTION_TEST_CASES, AttentionTestCase
from axcore.ops.attention.kernels import attention_reference
from axcore.ops.attention.op import ATTENTION_OP
from axcore.ops.contract import only_shapes
from axcore.ops.cross_entropy.contract import CROSS_ENTROPY_TEST_CASES, CrossEntropyTestCase
from axcore.ops.cross_entropy.kernels import (
    cross_entropy_portable_backward,
    cross_entropy_reference,
    token_statistics_reference,
)
from axcore.ops.cross_entropy.op import CROSS_ENTROPY_OP
from axcore.ops.decode_attention.contract import DECODE_TEST_CASES, DecodeTestCase
from axcore.ops.decode_attention.kernels import decode_attention_reference
from axcore.ops.decode_attention.op import (
    DECODE_ATTENTION_OP,
)
from axcore.ops.decode_matmul.contract import DECODE_MATMUL_TEST_CASES, DecodeMatmulTestCase
from axcore.ops.decode_matmul.kernels import decode_matmul_reference
from axcore.ops.decode_matmul.op import (
    DECODE_MATMUL_OP,
)
from axcore.ops.dispatch import Call
from axcore.ops.grouped_matmul.contract import GROUPED_MATMUL_TEST_CASES, GroupedMatmulTestCase
from axcore.ops.grouped_matmul.kernels import (
    grouped_matmul_portable_backward,
    grouped_matmul_reference,
)
from axcore.ops.grouped_matmul.op import GROUPED_MATMUL_OP
from axcore.ops.op import KernelOp
from axcore.ops.quantized.contract import QUANTIZED_DOT_TEST_CASES
from axcore.ops.quantized.kernels import emulated_matmul
from axcore.ops.quantized.op import QUANTIZED_DOT_OP, matmul_calls
from axcore.ops.quantized.quantize import MATMULS, QuantizedDotSpec
from axcore.ops.quantized.vjp import quantized_custom_vjp
from axcore.ops.rms_norm.contract import RMS_NORM_TEST_CASES, RmsNormTestCase
from axcore.ops.rms_norm.kernels import rms_norm_portable_backward, rms_norm_reference
from axcore.ops.rms_norm.op import RMS_NORM_OP
from axcore.ops.rope.contract import ROPE_TEST_CASES, RopeTestCase
from axcore.ops.rope.kernels import rope_reference
from axcore.ops.rope.op import ROPE_OP, RopeInputs, RopeSpec, rope_custom_vjp
from axcore.plugins import Kernel, Op, plugin_host

__all__ = [
    "ATTENTION",
    "ATTENTION_BACKWARD",
    "CROSS_ENTROPY",
    "CROSS_ENTROPY_BACKWARD",
    "DECODE_ATTENTION",
    "DECODE_MATMUL",
    "GROUPED_MATMUL",
    "GROUPED_MATMUL_BACKWARD",
    "QUANTIZED_DOT",
    "RMS_NORM",
    "RMS_NORM_BACKWARD",
    "ROPE",
    "AttentionTestCase",
    "Case",
    "DecodeMatmulTestCase",
    "DecodeTestCase",
    "GroupedMatmulTestCase",
    "OpContract",
    "RmsNormTestCase",
    "RopeTestCase",
    "attention_backward_case",
    "attention_case",
    "backward_contract",
    "contract_of",
    "decode_case",
    "decode_matmul_case",
    "functions_of",
    "grouped_matmul_case",
    "rms_norm_case",
    "rope_case",
]

Make = Callable[[Any], tuple[Any, Any]]
Run = Callable[[Any, Any, Any], Any]


def _run_as_it_is(function: Any, inputs: Any, spec: Any) -> Any:
    return function(inputs, spec)


@attrs.frozen(kw_only=True)
class Case:
    """One call of an op.

    Args:
        name: Unique among the op's cases.
        make: From a dtype to `(inputs, spec)`: a pytree of arrays, and static choices. Equal each
            time.
        call: From inputs, which may be traced, and spec to the call that kernels are asked about.
        run: From a function `(inputs, spec)`, inputs and spec to a pytree of float arrays without
            infinities, which is differentiated as it is.
    """

    name: str
    make: Make
    call: Callable[[Any, Any], Call]
    run: Run = _run_as_it_is

    def abstract(self, dtype: Any) -> tuple[Any, Any, Call]:
        """Return inputs' shapes, the static choices and the call, without computing anything."""
        seen: list[Any] = []

        def trace() -> Any:
            inputs, spec = self.make(dtype)
            seen.extend((spec, self.call(inputs, spec)))
            return inputs

        with only_shapes():
            return jax.eval_shape(trace), *seen

    def abstract_call(self, dtype: Any) -> Call:
        """Return the call, without computing anything."""
        return self.abstract(dtype)[2]


@attrs.frozen(kw_only=True)
class OpContract:
    """What kernels of an op must do.

    Args:
        op: How the op calls its kernels.
        reference: The op's function that defines what it means; differentiable.
        cases: Calls to try.
        model_cases: Calls as large as models make them, which `axcore kernels tune` times.
        forward: The forward kernel by which backward kernels are proven, for an op that has them.
        backward: The backward kernel by which forward kernels are proven.
    """

    op: KernelOp[Any]
    reference: Any
    cases: tuple[Case, ...]
    model_cases: tuple[Case, ...] = ()
    forward: Any = None
    backward: Any = None

    def function(self, kernel: Kernel, implementation: Any) -> Callable[[Any, Any], Any]:
        """Return the op by a kernel: a function `(inputs, spec)` that JAX differentiates.

        Args:
            kernel: The kernel's record.
            implementation: Its function, or another form of it; of a record that has a backward
                function too, both.
        """
        if kernel.op == self.op.backward:
            return self.op.with_gradient(self.forward, self.op.sharded(kernel, implementation))
        forward, backward = (
            implementation if kernel.backward is not None else (implementation, self.backward)
        )
        return self.op.function(kernel, forward, backward)


def functions_of(kernel: Kernel) -> Any:
    """Return a kernel's function; of a record that has a backward function too, both."""
    forward = kernel.forward.resolve()
    return forward if kernel.backward is None else (forward, kernel.backward.resolve())


def contract_of(op: str) -> OpContract:
    """Return the contract of an installed op.

    Raises:
        PluginError: It has none.
    """
    (record,) = [one for one in plugin_host().records(Op) if one.name == op]
    if record.contract is None:
        raise PluginError(
            f"op {op!r} has no contract, so its kernels cannot be proven",
            where=f"op {op!r} of plugin {record.plugin!r}",
            hint="give the Op a `contract`: a Ref to an axcore.testing.OpContract",
        )
    contract: OpContract = record.contract.resolve()
    return contract


def attention_case(sample: AttentionTestCase, *, with_lse: bool = False) -> Case:
    """Return the case of a sample, with the log-sum-exp asked for or not."""

    def run(attend: Any, inputs: Any, spec: Any) -> Any:
        o, lse = attend(inputs, spec)
        return (o, jnp.where(jnp.isfinite(lse), lse, 0.0)) if with_lse else (o,)

    return Case(
        name=f"{sample.name}_lse" if with_lse else sample.name,
        make=sample.make,
        call=lambda inputs, spec: ATTENTION_OP.call(inputs, spec, lse=with_lse),
        run=run,
    )


def attention_backward_case(sample: AttentionTestCase, *, with_lse: bool = False) -> Case:
    """Return the case of a sample for backward kernels."""
    return _of_backward(attention_case(sample, with_lse=with_lse))


def _of_backward(case: Case) -> Case:
    def call(inputs: Any, spec: Any) -> Call:
        return attrs.evolve(case.call(inputs, spec), op=f"{case.call(inputs, spec).op}_backward")

    return attrs.evolve(case, call=call)


def backward_contract(contract: OpContract) -> OpContract:
    """Return the contract of an op's backward kernels, from that of its forward ones."""
    cases, model_cases = (
        tuple(_of_backward(case) for case in some)
        for some in (contract.cases, contract.model_cases)
    )
    return attrs.evolve(contract, cases=cases, model_cases=model_cases)


_WITH_LSE = tuple(
    attention_case(sample, with_lse=True)
    for sample in ATTENTION_TEST_CASES
    if sample.name in ("plain", "everything")
)


_MODEL_CASES = tuple(
    attention_case(
        AttentionTestCase(
            name=f"{tokens}_tokens_of_width_{width}{'_packed' if parts else ''}",
            batch=16384 // tokens,
            queries=tokens,
            keys=tokens,
            heads=16,
            key_heads=8,
            width=width,
            value_width=width,
            parts=parts,
            spec={"right": 0},
        )
    )
    for tokens in (4096, 16384)
    for width in (64, 128)
    for parts in ((), ("segments",))
)

ATTENTION = OpContract(
    op=ATTENTION_OP,
    reference=attention_reference,
    cases=(*(attention_case(sample) for sample in ATTENTION_TEST_CASES), *_WITH_LSE),
    model_cases=_MODEL_CASES,
    forward=attention_reference,
    backward=blockwise_backward,
)

ATTENTION_BACKWARD = backward_contract(ATTENTION)


def cross_entropy_case(sample: CrossEntropyTestCase) -> Case:
    """Return the case of a sample."""
    return Case(
        name=sample.name,
        make=sample.make,
        call=CROSS_ENTROPY_OP.call,
        run=lambda function, inputs, spec: tuple(function(inputs, spec))[:2],
    )


CROSS_ENTROPY = OpContract(
    op=CROSS_ENTROPY_OP,
    reference=cross_entropy_reference,
    forward=token_statistics_reference,
    backward=cross_entropy_portable_backward,
    cases=tuple(cross_entropy_case(sample) for sample in CROSS_ENTROPY_TEST_CASES),
    model_cases=tuple(
        cross_entropy_case(
            CrossEntropyTestCase(
                name=f"{vocabulary}_words_of_width_{width}",
                leading=(2, 4096),
                width=width,
                vocabulary=vocabulary,
                w_dtype="float32",
            )
        )
        for width, vocabulary in ((4096, 32000), (4096, 128256))
    ),
)

CROSS_ENTROPY_BACKWARD = backward_contract(CROSS_ENTROPY)


def rms_norm_case(sample: RmsNormTestCase) -> Case:
    """Return the case of a sample."""
    return Case(name=sample.name, make=sample.make, call=RMS_NORM_OP.call)


RMS_NORM = OpContract(
    op=RMS_NORM_OP,
    reference=rms_norm_reference,
    forward=rms_norm_reference,
    backward=rms_norm_portable_backward,
    cases=tuple(rms_norm_case(sample) for sample in RMS_NORM_TEST_CASES),
    model_cases=tuple(
        rms_norm_case(RmsNormTestCase(name=f"width_{width}", shape=(2, 4096, width)))
        for width in (2048, 4096, 8192)
    ),
)

RMS_NORM_BACKWARD = backward_contract(RMS_NORM)


def _run_rope(function: Any, inputs: RopeInputs, spec: RopeSpec) -> Any:
    """Run the op with the kernel for the gradient, too."""
    return rope_custom_vjp(inputs, spec, forward=function)


def rope_case(sample: RopeTestCase) -> Case:
    """Return the case of a sample."""
    return Case(name=sample.name, make=sample.make, call=ROPE_OP.call, run=_run_rope)


ROPE = OpContract(
    op=ROPE_OP,
    reference=rope_reference,
    cases=tuple(rope_case(sample) for sample in ROPE_TEST_CASES),
    model_cases=tuple(
        rope_case(RopeTestCase(name=f"heads_{heads}", tokens=4096, heads=heads, width=128))
        for heads in (8, 32)
    ),
)


def grouped_matmul_case(sample: GroupedMatmulTestCase) -> Case:
    """Return the case of a sample."""
    return Case(
        name=sample.name, make=lambda dtype: (sample.make(dtype), None), call=GROUPED_MATMUL_OP.call
    )


GROUPED_MATMUL = OpContract(
    op=GROUPED_MATMUL_OP,
    reference=grouped_matmul_reference,
    forward=grouped_matmul_reference,
    backward=grouped_matmul_portable_backward,
    cases=tuple(grouped_matmul_case(sample) for sample in GROUPED_MATMUL_TEST_CASES),
    model_cases=tuple(
        grouped_matmul_case(
            GroupedMatmulTestCase(
                name=f"{num_groups}_experts_of_{width}_by_{out_width}",
                group_sizes=tuple(16384 // num_groups + shift for shift in (-8, 8))
                * (num_groups // 2),
                num_rows=16384,
                width=width,
                out_width=out_width,
            )
        )
        for num_groups, width, out_width in ((8, 4096, 14336), (40, 2048, 1408))
    ),
)

GROUPED_MATMUL_BACKWARD = backward_contract(GROUPED_MATMUL)


def _forward_call(inputs: Any, spec: QuantizedDotSpec) -> Call:
    return matmul_calls(inputs.x_RK.shape, inputs.w_KN.shape, spec, dtype=inputs.x_RK.dtype.name)[
        "forward"
    ]


def _run_quantized(kernel: Any, inputs: Any, spec: QuantizedDotSpec) -> Any:
    """Run the op with the kernel for all three products, the gradients' included."""
    kernels = dict.fromkeys(MATMULS, kernel)
    return quantized_custom_vjp(inputs.x_RK, inputs.w_KN, spec, kernels, amaxes=inputs.amaxes)


QUANTIZED_DOT = OpContract(
    op=QUANTIZED_DOT_OP,
    reference=emulated_matmul,
    cases=tuple(
        Case(name=sample.name, make=sample.make, call=_forward_call, run=_run_quantized)
        for sample in QUANTIZED_DOT_TEST_CASES
    ),
)


def _without_gradients(kernel: Any, inputs: Any, spec: Any) -> Array:
    """Run a kernel of an op that asks for no gradients."""
    out: Array = lax.stop_gradient(kernel(lax.stop_gradient(inputs), spec))
    return out


def decode_case(sample: DecodeTestCase) -> Case:
    """Return the case of a sample."""
    return Case(
        name=sample.name, make=sample.make, call=DECODE_ATTENTION_OP.call, run=_without_gradients
    )


DECODE_ATTENTION = OpContract(
    op=DECODE_ATTENTION_OP,
    reference=decode_attention_reference,
    cases=tuple(decode_case(sample) for sample in DECODE_TEST_CASES),
)


def decode_matmul_case(sample: DecodeMatmulTestCase) -> Case:
    """Return the case of a sample."""
    return Case(
        name=sample.name, make=sample.make, call=DECODE_MATMUL_OP.call, run=_without_gradients
    )


DECODE_MATMUL = OpContract(
    op=DECODE_MATMUL_OP,
    reference=decode_matmul_reference,
    cases=tuple(decode_matmul_case(sample) for sample in DECODE_MATMUL_TEST_CASES),
)
