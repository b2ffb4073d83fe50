"""Gradients of RMS normalisation from two kernels: any forward with any backward one.

Backward gets the inputs of the call and the gradient of its output, and nothing else: to compute a
row's factor again costs less than to keep it.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import jax
from jax import Array

from axcore.ops.rms_norm.types import RmsNormInputs, RmsNormSpec

Forward = Callable[[RmsNormInputs, RmsNormSpec], Array]


@runtime_checkable
class Backward(Protocol):
    """A backward kernel: the gradients of `x` and of the scale, None where there is none."""

    def __call__(self, inputs: RmsNormInputs, spec: RmsNormSpec, *, dy: Array) -> RmsNormInputs:
        """Return the gradients, given that of the output."""
        ...


def rms_norm_custom_vjp(
    inputs: RmsNormInputs, spec: RmsNormSpec, *, forward: Forward, backward: Backward
) -> Array:
    """Return `forward(inputs, spec)`, whose gradient is `backward`."""

    @jax.custom_vjp
    def run(inputs: RmsNormInputs) -> Array:
        return forward(inputs, spec)

    def run_forward(inputs: RmsNormInputs) -> tuple[Array, RmsNormInputs]:
        return forward(inputs, spec), inputs

    def run_backward(inputs: RmsNormInputs, dy: Array) -> tuple[RmsNormInputs]:
        return (backward(inputs, spec, dy=dy),)

    run.defvjp(run_forward, run_backward)
    y: Array = run(inputs)
    return y
