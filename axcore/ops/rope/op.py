"""The rotary-position op.

Letters: B batch, T time, N heads, H width of a head, F = H / 2 pairs.
"""

from collections.abc import Callable
from typing import NamedTuple

import attrs
import jax
import jax.numpy as jnp
from jax import Array

from axcore.errors import KernelError
from axcore.ops.attention.op import HEADS
from axcore.ops.op import KernelOp, ResultSpec
from axcore.parallel.shard_op import OpSharding, axes


class RopeInputs(NamedTuple):
    """The arrays of one call: `x [B, T, N, H]`, `cos` and `sin [B, T, F]` of pairs' angles."""

    x: Array
    cos: Array
    sin: Array


@attrs.frozen
class RopeSpec:
    """The static choices of one call: none."""


def rope_sharding(inputs: RopeInputs, spec: RopeSpec) -> OpSharding:
    """Return how a call is split: by rows, time, and heads as attention splits them."""
    heads, angles = axes("batch", "time", HEADS, None), axes("batch", "time", None)
    return OpSharding(
        inputs=RopeInputs(heads, angles, angles),
        outputs=heads,
        split=("batch", "time", HEADS),
    )


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
        # A rotation's transpose is the rotation back. So one kernel serves both ways, and only
        # the angles are kept.
        dx_BTNH = forward(RopeInputs(dy_BTNH, cos_BTF, -sin_BTF), spec)
        return (RopeInputs(dx_BTNH, None, None),)  # type: ignore[arg-type]

    run.defvjp(run_forward, run_backward)
    y_BTNH: Array = run(inputs)
    return y_BTNH


def _results(inputs: RopeInputs, spec: RopeSpec) -> ResultSpec:
    return ResultSpec.like("y_BTNH", inputs.x)


ROPE_OP = KernelOp[Array](
    name="rope", inputs=RopeInputs, spec=RopeSpec, sharding=rope_sharding, results=_results
)


def rope(x_BTNH: Array, cos_BTF: Array, sin_BTF: Array) -> Array:
    """Return heads whose pairs of dimensions are rotated, in x's dtype; arithmetic is float32.

    Dimension `i` is paired with `i + F`:
    `y_i = x_i cos_i - x_(i+F) sin_i` and `y_(i+F) = x_(i+F) cos_i + x_i sin_i`.

    Args:
        x_BTNH: Floating; `H` even.
        cos_BTF: Float32, the cosine of each pair's angle; a factor on the result belongs in both.
        sin_BTF: Float32. Angles carry no gradient.

    Raises:
        KernelError: Shapes or dtypes do not fit, or no kernel can serve the call.

    Source: Su et al. 2021, arXiv:2104.09864, eq. 34.
    """
    inputs, spec = RopeInputs(x_BTNH, cos_BTF, sin_BTF), RopeSpec()
    _check(inputs)
    return rope_custom_vjp(inputs, spec, forward=_run)


def _run(inputs: RopeInputs, spec: RopeSpec) -> Array:
    return ROPE_OP.run(inputs, spec)


def _check(inputs: RopeInputs) -> None:
    x = inputs.x
    if x.ndim != 4 or x.shape[-1] % 2 or not jnp.issubdtype(x.dtype, jnp.floating):
        raise KernelError(
            f"rope: x is {x.dtype} of shape {x.shape}; expected floating [B, T, N, H], H even."
        )
    wanted = (*x.shape[:2], x.shape[-1] // 2)
    for name, angles in (("cos", inputs.cos), ("sin", inputs.sin)):
        if angles.shape != wanted or angles.dtype != jnp.float32:
            raise KernelError(
                f"rope: {name} is {angles.dtype} of shape {angles.shape}; expected float32 of "
                f"{wanted}, an angle for each token and pair of x {x.shape}."
            )
