"""Gradients of attention from two halves: any forward kernel with any backward kernel.

What forward leaves for backward is fixed: the output and the log-sum-exp, by name.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import jax
from jax import Array

from axcore.ops.attention.types import AttentionInputs, AttentionSpec
from axcore.ops.residuals import name_attention_residuals

Forward = Callable[[AttentionInputs, AttentionSpec], tuple[Array, Array]]


@runtime_checkable
class Backward(Protocol):
    """A backward kernel: gradients of a call's arrays, None for parts that carry none."""

    def __call__(
        self,
        inputs: AttentionInputs,
        spec: AttentionSpec,
        *,
        o_BTNV: Array,
        lse_BTN: Array,
        do_BTNV: Array,
        dlse_BTN: Array,
    ) -> AttentionInputs:
        """Return the gradients, given those of the output and of the log-sum-exp."""
        ...


_Residuals = tuple[AttentionInputs, Array, Array]


def attention_custom_vjp(
    inputs: AttentionInputs, spec: AttentionSpec, *, forward: Forward, backward: Backward
) -> tuple[Array, Array]:
    """Return `forward(inputs, spec)`, whose gradient is `backward`."""

    @jax.custom_vjp
    def run(inputs: AttentionInputs) -> tuple[Array, Array]:
        return forward(inputs, spec)

    def run_forward(inputs: AttentionInputs) -> tuple[tuple[Array, Array], _Residuals]:
        o_BTNV, lse_BTN = name_attention_residuals(*forward(inputs, spec))
        return (o_BTNV, lse_BTN), (inputs, o_BTNV, lse_BTN)

    def run_backward(
        residuals: _Residuals, gradients: tuple[Array, Array]
    ) -> tuple[AttentionInputs]:
        inputs, o_BTNV, lse_BTN = residuals
        do_BTNV, dlse_BTN = gradients
        return (
            backward(
                inputs, spec, o_BTNV=o_BTNV, lse_BTN=lse_BTN, do_BTNV=do_BTNV, dlse_BTN=dlse_BTN
            ),
        )

    run.defvjp(run_forward, run_backward)
    outputs: tuple[Array, Array] = run(inputs)
    return outputs
