"""What each op promises, as cases with a reference: `KernelSuite` proves kernels by it."""

from collections.abc import Callable
from typing import Any

import attrs
import jax
import jax.numpy as jnp

from axcore.ops import Call, ForwardOnly
from axcore.ops.attention_blockwise import blockwise_backward
from axcore.ops.attention_kernels import ATTENTION_BACKWARD as BACKWARD
from axcore.ops.attention_kernels import attention_call
from axcore.ops.attention_reference import attention_reference
from axcore.ops.attention_samples import ATTENTION_SAMPLES, AttentionSample
from axcore.ops.attention_types import AttentionInputs, AttentionSpec
from axcore.ops.attention_vjp import attention_from_halves
from axcore.ops.cross_entropy import cross_entropy_call
from axcore.ops.cross_entropy_reference import cross_entropy_reference
from axcore.ops.cross_entropy_samples import CROSS_ENTROPY_SAMPLES, CrossEntropySample

__all__ = [
    "ATTENTION",
    "ATTENTION_BACKWARD",
    "CROSS_ENTROPY",
    "AttentionSample",
    "Case",
    "OpContract",
    "attention_backward_case",
    "attention_case",
]

Make = Callable[[Any], tuple[Any, Any]]
Run = Callable[[Any, Any, Any], Any]


@attrs.frozen(kw_only=True)
class Case:
    """One call of an op.

    Args:
        name: Unique among the op's cases.
        make: From a dtype to `(inputs, spec)`: a pytree of arrays, and static choices. Equal each
            time.
        call: From inputs, which may be traced, and spec to the call that `accepts` is asked about.
        run: From a kernel, inputs and spec to a pytree of float arrays without infinities, which
            is differentiated as it stands.
    """

    name: str
    make: Make
    call: Callable[[Any, Any], Call]
    run: Run

    def abstract_call(self, dtype: Any) -> Call:
        """Returns the call, without computing anything."""
        calls: list[Call] = []

        def trace() -> Any:
            inputs, spec = self.make(dtype)
            calls.append(self.call(inputs, spec))
            return inputs

        jax.eval_shape(trace)
        return calls[0]


@attrs.frozen(kw_only=True)
class OpContract:
    """What kernels of an op must do.

    Args:
        reference: The kernel that defines what the op means.
        cases: Calls to try.
        model_cases: Calls as large as models make them, which `axcore kernels tune` times.
    """

    reference: Any
    cases: tuple[Case, ...]
    model_cases: tuple[Case, ...] = ()


def attention_case(sample: AttentionSample, *, with_lse: bool = False) -> Case:
    """Returns the case of a sample, with the log-sum-exp asked for or not."""

    def run(kernel: Any, inputs: Any, spec: Any) -> Any:
        if isinstance(kernel, ForwardOnly):
            o, lse = attention_from_halves(
                inputs, spec, forward=kernel.forward, backward=blockwise_backward
            )
        else:
            o, lse = kernel(inputs, spec)
        return (o, jnp.where(jnp.isfinite(lse), lse, 0.0)) if with_lse else (o,)

    return Case(
        name=f"{sample.name}_lse" if with_lse else sample.name,
        make=sample.make,
        call=lambda inputs, spec: attention_call(inputs, spec, with_lse=with_lse),
        run=run,
    )


def attention_backward_case(sample: AttentionSample, *, with_lse: bool = False) -> Case:
    """Returns the case of a sample for backward kernels, fed by the reference's forward pass."""
    return _backward_case(attention_case(sample, with_lse=with_lse))


def _backward_case(case: Case) -> Case:

    def run(kernel: Any, inputs: Any, spec: Any) -> Any:
        if kernel is attention_reference:
            return case.run(kernel, inputs, spec)

        def halves(inputs: Any, spec: Any) -> Any:
            return attention_from_halves(inputs, spec, forward=attention_reference, backward=kernel)

        return case.run(halves, inputs, spec)

    return attrs.evolve(
        case, run=run, call=lambda inputs, spec: attrs.evolve(case.call(inputs, spec), op=BACKWARD)
    )


_WITH_LSE = tuple(
    attention_case(sample, with_lse=True)
    for sample in ATTENTION_SAMPLES
    if sample.name in ("plain", "everything")
)


def _backward_alone(case: Case) -> Case:
    """Returns the case for timing backward kernels, after a forward pass that does nothing."""

    def forward(inputs: AttentionInputs, spec: AttentionSpec) -> tuple[jax.Array, jax.Array]:
        rows, values = inputs.q_BTNH.shape[:3], inputs.v_BSKV.shape[3]
        return jnp.zeros((*rows, values), inputs.q_BTNH.dtype), jnp.zeros(rows, jnp.float32)

    def run(kernel: Any, inputs: Any, spec: Any) -> Any:
        return attention_from_halves(inputs, spec, forward=forward, backward=kernel)[0]

    return attrs.evolve(_backward_case(case), run=run)


_MODEL_CASES = tuple(
    attention_case(
        AttentionSample(
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
    reference=attention_reference,
    cases=(*(attention_case(sample) for sample in ATTENTION_SAMPLES), *_WITH_LSE),
    model_cases=_MODEL_CASES,
)

ATTENTION_BACKWARD = OpContract(
    reference=attention_reference,
    cases=tuple(_backward_case(case) for case in ATTENTION.cases),
    model_cases=tuple(_backward_alone(case) for case in _MODEL_CASES),
)


def cross_entropy_case(sample: CrossEntropySample) -> Case:
    """Returns the case of a sample."""
    return Case(
        name=sample.name,
        make=sample.make,
        call=cross_entropy_call,
        run=lambda kernel, inputs, spec: tuple(kernel(inputs, spec))[:2],
    )


CROSS_ENTROPY = OpContract(
    reference=cross_entropy_reference,
    cases=tuple(cross_entropy_case(sample) for sample in CROSS_ENTROPY_SAMPLES),
    model_cases=tuple(
        cross_entropy_case(
            CrossEntropySample(
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
