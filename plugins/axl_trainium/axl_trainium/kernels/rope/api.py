"""The rotary-position op by an NKI kernel, on the chip in float32.

Letters: N heads, H width of a head, F = H / 2 pairs; M tiles of P tokens.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array

from axcore.ops import Call, RopeInputs, RopeSpec
from axl_trainium.calling import call_kernel, tiled, untiled
from axl_trainium.hardware import SBUF_PARTITION_BYTES, unsupported_dtype_reason
from axl_trainium.kernels.rope.nki_kernel import rope


def unsupported_reason(call: Call) -> str | None:
    """Return None where the kernel can serve the call, else the reason why not."""
    reason = unsupported_dtype_reason(call.dtype("x"))
    if reason is not None:
        return reason
    shape = call.shape("x")
    if math.prod(shape) == 0:
        return f"takes one element or more, not {shape}"
    heads, width = shape[2:]
    # The tokens as they come and as they go, their angles, and two products of a head's half.
    needed = 2 * heads * width * jnp.dtype(call.dtype("x")).itemsize + 4 * (width + width)
    if needed > SBUF_PARTITION_BYTES:
        return f"takes heads of up to {SBUF_PARTITION_BYTES} bytes of a partition, not {needed}"
    return None


def nki_rope(inputs: RopeInputs, spec: RopeSpec) -> Array:
    """Return the rotated heads; see `axcore.ops.rope`.

    Cost: reads and writes `x` once.
    """
    x = inputs.x
    x_MPD = tiled(x.reshape(*x.shape[:2], -1))
    outputs = jax.ShapeDtypeStruct(x_MPD.shape, x_MPD.dtype)
    y_MPD = call_kernel(rope, outputs, x_MPD, tiled(inputs.cos), tiled(inputs.sin))
    return untiled(y_MPD, x.shape, num_rows=x.shape[0] * x.shape[1])
