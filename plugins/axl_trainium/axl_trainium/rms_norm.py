"""The RMS normalisation op by NKI kernels, forward and backward.

Letters: D width; any leading dimensions. M tiles of P rows.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from axcore.ops import Call
from axcore.parallel import rows_on_each_device
from axl_trainium.calling import call_kernel, float32_like
from axl_trainium.kernels.rms_norm import rms_norm_backward, rms_norm_forward
from axl_trainium.limits import SBUF_PARTITION_BYTES, why_not_dtype
from axl_trainium.row_tiles import tiled, untiled


def accepts(call: Call) -> str | None:
    """Returns None where the kernels can serve the call, else the reason why not.

    In the backward pass, four float32 rows and three in x's dtype must stand in a partition.
    """
    reason = why_not_dtype(call.dtype("x"))
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


def nki_rms_norm(x: Array, scale_D: Array | None, epsilon: float, scale_offset: float) -> Array:
    """Returns the normalised `x`; see `axcore.ops.rms_norm`. Float32 inside.

    Cost: reads and writes `x` once forward; reads `x` and `dy` once and writes `dx` backward.
    """
    width = x.shape[-1]
    scale = jnp.ones((width,), jnp.float32) if scale_D is None else scale_D.astype(jnp.float32)
    wide = scale if scale_D is None else scale + scale_offset
    return rows_on_each_device(partial(_normalise, epsilon), x, wide.reshape(1, width))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _normalise(epsilon: float, x: Array, scale_1D: Array) -> Array:
    return _forward(epsilon, x, scale_1D)[0]


def _forward(epsilon: float, x: Array, scale_1D: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    x_MPD = tiled(x)
    outputs = (jax.ShapeDtypeStruct(x_MPD.shape, x.dtype), float32_like(*x_MPD.shape[:2], 1))
    y_MPD, factor_MP1 = call_kernel(rms_norm_forward, outputs, x_MPD, scale_1D, epsilon=epsilon)
    return untiled(y_MPD, x.shape, num_rows=_rows(x)), (x, scale_1D, factor_MP1)


def _backward(
    epsilon: float, residuals: tuple[Array, Array, Array], dy: Array
) -> tuple[Array, Array]:
    x, scale_1D, factor_MP1 = residuals
    x_MPD = tiled(x)
    outputs = (jax.ShapeDtypeStruct(x_MPD.shape, x.dtype), float32_like(*scale_1D.shape))
    dx_MPD, dscale_1D = call_kernel(
        rms_norm_backward, outputs, x_MPD, scale_1D, factor_MP1, tiled(dy)
    )
    return untiled(dx_MPD, x.shape, num_rows=_rows(x)), dscale_1D


_normalise.defvjp(_forward, _backward)


def _rows(x: Array) -> int:
    return math.prod(x.shape[:-1])
