"""The RMS normalisation op.

Letters: D width; any leading dimensions.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import attrs
import jax
import jax.numpy as jnp
from jax import Array

from axcore.errors import KernelError
from axcore.ops.dispatch import Call
from axcore.ops.op import KernelOp, ResultSpec
from axcore.parallel.shard_op import OpSharding, axes, leading_axes


class RmsNormInputs(NamedTuple):
    """The arrays of one call: `x [..., D]`, and `scale [D]` if there is one."""

    x: Array
    scale: Array | None


@attrs.frozen(kw_only=True)
class RmsNormSpec:
    """The static choices of one call; hashable."""

    epsilon: float
    scale_offset: float = 0.0


def rms_norm_sharding(inputs: RmsNormInputs, spec: RmsNormSpec) -> OpSharding:
    """Return how a call is split: by rows, whose width is whole."""
    rows = axes(*leading_axes(inputs.x.ndim - 1), None)
    return OpSharding(
        inputs=RmsNormInputs(rows, axes(None)),
        outputs=rows,
        backward={"dy": rows},
        split=("batch", "time", "heads"),
    )


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


def _results(inputs: RmsNormInputs, spec: RmsNormSpec) -> ResultSpec:
    return ResultSpec.like("y", inputs.x)


RMS_NORM_OP = KernelOp(
    name="rms_norm",
    sharding=rms_norm_sharding,
    results=_results,
    custom_vjp=rms_norm_custom_vjp,
)


def rms_norm(
    x: Array, scale_D: Array | None = None, *, epsilon: float = 1e-6, scale_offset: float = 0.0
) -> Array:
    """Return `x / sqrt(mean(x^2) + epsilon) * (scale_offset + scale)`, in x's dtype.

    The mean is over the last dimension; all arithmetic is float32.

    Args:
        x: `[..., D]`, floating.
        scale_D: Floating; no factor if left out.
        epsilon: Above 0.
        scale_offset: 1 where the scale is stored as its difference from 1.

    Raises:
        KernelError: Shapes, dtypes or numbers do not fit, or no kernel can serve the call.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4.
    """
    _check(x, scale_D, epsilon)
    inputs = RmsNormInputs(x, scale_D)
    spec = RmsNormSpec(epsilon=float(epsilon), scale_offset=float(scale_offset))
    y: Array = RMS_NORM_OP.run(rms_norm_call(inputs, spec), inputs, spec)
    return y


def rms_norm_call(inputs: RmsNormInputs, spec: RmsNormSpec) -> Call:
    """Return the call that kernels are asked about."""
    return Call.of(RMS_NORM_OP.name, inputs._asdict(), attrs.asdict(spec))


def _check(x: Array, scale: Array | None, epsilon: float) -> None:
    if x.ndim == 0 or not jnp.issubdtype(x.dtype, jnp.floating):
        raise KernelError(
            f"rms_norm: x is {x.dtype} of shape {x.shape}; expected floating [..., D]."
        )
    if scale is not None and scale.shape != x.shape[-1:]:
        raise KernelError(
            f"rms_norm: scale has shape {scale.shape}; expected {x.shape[-1:]}, the last of x."
        )
    if scale is not None and not jnp.issubdtype(scale.dtype, jnp.floating):
        raise KernelError(f"rms_norm: scale is {scale.dtype}; expected floating.")
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise KernelError(f"rms_norm: epsilon is {epsilon}; expected a number above 0.")
