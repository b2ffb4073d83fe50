"""Gradients of the grouped matmul from two kernels: any forward with any backward one.

Backward gets the inputs of the call and the gradient of its output.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import jax
from jax import Array

from axcore.ops.grouped_matmul.types import GroupedMatmulInputs

Forward = Callable[[GroupedMatmulInputs, None], Array]


@runtime_checkable
class Backward(Protocol):
    """A backward kernel: the gradients of rows and of matrices, None for the sizes."""

    def __call__(
        self, inputs: GroupedMatmulInputs, spec: None, *, dy_RF: Array
    ) -> GroupedMatmulInputs:
        """Return the gradients, given that of the output."""
        ...


def grouped_matmul_custom_vjp(
    inputs: GroupedMatmulInputs, spec: None, *, forward: Forward, backward: Backward
) -> Array:
    """Return `forward(inputs, spec)`, whose gradient is `backward`."""

    @jax.custom_vjp
    def run(inputs: GroupedMatmulInputs) -> Array:
        return forward(inputs, spec)

    def run_forward(inputs: GroupedMatmulInputs) -> tuple[Array, GroupedMatmulInputs]:
        return forward(inputs, spec), inputs

    def run_backward(inputs: GroupedMatmulInputs, dy_RF: Array) -> tuple[GroupedMatmulInputs]:
        return (backward(inputs, spec, dy_RF=dy_RF),)

    run.defvjp(run_forward, run_backward)
    y_RF: Array = run(inputs)
    return y_RF
