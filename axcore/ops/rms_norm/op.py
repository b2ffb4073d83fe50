"""The RMS normalisation op.

A backward kernel is a function `(inputs, spec, *, dy) -> RmsNormInputs`: the gradients of `x` and
of the scale. It gets no residuals: to compute a row's factor again costs less than to keep it.

Letters: D width; any leading dimensions.
"""

import math
from typing import NamedTuple

import attrs
import jax.numpy as jnp
from jax import Array

from axcore.errors import KernelError
from axcore.ops.op import KernelOp, ResultSpec, vjp_from_inputs
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


def _results(inputs: RmsNormInputs, spec: RmsNormSpec) -> ResultSpec:
    return ResultSpec.like("y", inputs.x)


RMS_NORM_OP = KernelOp[Array](
    name="rms_norm",
    inputs=RmsNormInputs,
    spec=RmsNormSpec,
    sharding=rms_norm_sharding,
    results=_results,
    custom_vjp=vjp_from_inputs("dy"),
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
    return RMS_NORM_OP.run(inputs, spec)


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
