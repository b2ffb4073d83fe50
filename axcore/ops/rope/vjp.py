"""The gradient of rotary positions: the same kernel, turning back."""

from collections.abc import Callable

import jax
from jax import Array

from axcore.ops.rope.types import RopeInputs, RopeSpec

Forward = Callable[[RopeInputs, RopeSpec], Array]

_Angles = tuple[Array, Array]


def rope_custom_vjp(inputs: RopeInputs, spec: RopeSpec, *, forward: Forward) -> Array:
    """Return `forward(inputs, spec)`, whose gradient is `forward` by the opposite angles.

    Angles come from integers: they carry no gradient.
    """

    @jax.custom_vjp
    def run(inputs: RopeInputs) -> Array:
        return forward(inputs, spec)

    def run_forward(inputs: RopeInputs) -> tuple[Array, _Angles]:
        return forward(inputs, spec), (inputs.cos, inputs.sin)

    def run_backward(angles: _Angles, dy_BTNH: Array) -> tuple[RopeInputs]:
        cos_BTF, sin_BTF = angles
        dx_BTNH = forward(RopeInputs(dy_BTNH, cos_BTF, -sin_BTF), spec)
        return (RopeInputs(dx_BTNH, None, None),)  # type: ignore[arg-type]

    run.defvjp(run_forward, run_backward)
    y_BTNH: Array = run(inputs)
    return y_BTNH
