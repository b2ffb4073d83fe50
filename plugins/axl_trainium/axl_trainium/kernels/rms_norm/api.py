"""The RMS normalisation op by NKI kernels, forward and backward.

Letters: D width; any leading dimensions. M tiles of P rows.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array

from axcore.ops import Call, RmsNormInputs, RmsNormSpec
from axl_trainium.calling import call_kernel, float32_like, tiled, untiled
from axl_trainium.hardware import SBUF_PARTITION_BYTES, unsupported_dtype_reason
from axl_trainium.kernels.rms_norm.nki_kernels import rms_norm_backward, rms_norm_forward


def unsupported_reason(call: Call) -> str | None:
    """Return None where the kernels can serve the call, else the reason why not.

    In the backward pass, four float32 rows and three in x's dtype must fit a partition.
    """
    reason = unsupported_dtype_reason(call.dtype("x"))
    if reason is not None:
        return reason
    shape = call.shape("x")
    if math.prod(shape) == 0:
        return f"takes one element or more, not {shape}"
    itemsize = jnp.dtype(call.dtype("x")).itemsize
    widest = SBUF_PARTITION_BYTES // (4 * 4 + 3 * itemsize) - 1
    if shape[-1] > widest:
        return f"takes widths to {widest} in {call.dtype('x')}, not {shape[-1]}"
    return None


def nki_rms_norm(inputs: RmsNormInputs, spec: RmsNormSpec) -> Array:
    """Return the normalised `x`; see `axcore.ops.rms_norm`. Float32 inside.

    Cost: reads and writes `x` once.
    """
    x_MPD, outputs = _tiles(inputs.x)
    scale_1D = _scale(inputs, spec)
    y_MPD = call_kernel(rms_norm_forward, outputs, x_MPD, scale_1D, epsilon=spec.epsilon)
    return untiled(y_MPD, inputs.x.shape, num_rows=_num_rows(inputs.x))


def nki_rms_norm_backward(inputs: RmsNormInputs, spec: RmsNormSpec, *, dy: Array) -> RmsNormInputs:
    """Return the gradients; that of the scale is float32.

    Cost: reads `x` and `dy` once and writes `dx`.
    """
    x_MPD, dx_like = _tiles(inputs.x)
    scale_1D = _scale(inputs, spec)
    outputs = (dx_like, float32_like(*scale_1D.shape))
    arrays = (x_MPD, scale_1D, tiled(dy))
    dx_MPD, dscale_1D = call_kernel(rms_norm_backward, outputs, *arrays, epsilon=spec.epsilon)
    dx = untiled(dx_MPD, inputs.x.shape, num_rows=_num_rows(inputs.x))
    return RmsNormInputs(dx, None if inputs.scale is None else dscale_1D[0])


def _tiles(x: Array) -> tuple[Array, jax.ShapeDtypeStruct]:
    x_MPD = tiled(x)
    return x_MPD, jax.ShapeDtypeStruct(x_MPD.shape, x.dtype)


def _scale(inputs: RmsNormInputs, spec: RmsNormSpec) -> Array:
    if inputs.scale is None:
        return jnp.ones((1, inputs.x.shape[-1]), jnp.float32)
    return (inputs.scale.astype(jnp.float32) + spec.scale_offset)[None]


def _num_rows(x: Array) -> int:
    return math.prod(x.shape[:-1])
