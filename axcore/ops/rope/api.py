"""The rotary-position op.

Letters: B batch, T time, N heads, H width of a head, F = H / 2 pairs.
"""

import attrs
import jax.numpy as jnp
from jax import Array

from axcore.errors import KernelError
from axcore.ops.dispatch.call import Call
from axcore.ops.dispatch.kernel_op import KernelOp
from axcore.ops.dispatch.kernel_result import ResultSpec
from axcore.ops.rope.sharding import rope_sharding
from axcore.ops.rope.types import RopeInputs, RopeSpec
from axcore.ops.rope.vjp import rope_custom_vjp


def _results(inputs: RopeInputs, spec: RopeSpec) -> ResultSpec:
    return ResultSpec.like("y_BTNH", inputs.x)


ROPE_OP = KernelOp(name="rope", sharding=rope_sharding, results=_results)


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


def rope_call(inputs: RopeInputs, spec: RopeSpec) -> Call:
    """Return the call that kernels are asked about."""
    return Call.of(ROPE_OP.name, inputs._asdict(), attrs.asdict(spec))


def _run(inputs: RopeInputs, spec: RopeSpec) -> Array:
    y_BTNH: Array = ROPE_OP.run(rope_call(inputs, spec), inputs, spec)
    return y_BTNH


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
