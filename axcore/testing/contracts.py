"""What each op promises, as cases with a reference: `KernelSuite` proves kernels by it."""

from collections.abc import Callable
from typing import Any

import attrs
import jax
import jax.numpy as jnp

from axcore.errors import PluginError
from axcore.ops import Call
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
from axcore.ops.op import KernelOp
from axcore.plugins import Kernel, Op, plugin_host

__all__ = [
    "ATTENTION",
    "ATTENTION_BACKWARD",
    "CROSS_ENTROPY",
    "CROSS_ENTROPY_BACKWARD",
    "AttentionTestCase",
    "Case",
    "OpContract",
    "attention_backward_case",
    "attention_case",
    "backward_contract",
    "contract_of",
    "functions_of",
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
