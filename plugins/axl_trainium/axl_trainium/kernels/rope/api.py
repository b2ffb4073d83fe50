"""Rotary positions by an NKI kernel. No op asks for it yet: it is a function to call.

Letters: B batch, T time, N heads, H width of a head, F = H / 2 pairs; M tiles of P tokens.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from axcore.errors import KernelError
from axl_trainium.calling import call_kernel
from axl_trainium.kernels.rope.nki_kernel import rope
from axl_trainium.kernels.row_tiles import tiled, untiled
from axl_trainium.limits import SBUF_PARTITION_BYTES, unsupported_dtype_reason


def nki_rotate(
    q_BTNH: Array,
    k_BTKH: Array,
    positions_BT: Array,
    *,
    frequencies: np.ndarray,
    amplitude: float = 1.0,
) -> tuple[Array, Array]:
    """Returns what `axcore.layers.rotate` does: queries and keys with their pairs rotated.

    Angles are computed by XLA in float32, rotations on the chip in float32. Under a mesh, call it
    inside of `shard_map`. Cost: reads and writes queries and keys once.

    Raises:
        KernelError: The dtype is not taken, or heads do not fit SBUF.
    """
    angles_BTF = positions_BT.astype(jnp.float32)[:, :, None] * jnp.asarray(
        frequencies, jnp.float32
    ).reshape(1, 1, -1)
    cos_BTF, sin_BTF = amplitude * jnp.cos(angles_BTF), amplitude * jnp.sin(angles_BTF)
    for x_BTNH in (q_BTNH, k_BTKH):
        _check(x_BTNH)
    return _rotated(q_BTNH, cos_BTF, sin_BTF), _rotated(k_BTKH, cos_BTF, sin_BTF)


def _check(x_BTNH: Array) -> None:
    heads, width = x_BTNH.shape[2:]
    # The tokens as they come and as they go, their angles, and two products of a head's half.
    needed = 2 * heads * width * x_BTNH.dtype.itemsize + 4 * (width + width)
    reason = unsupported_dtype_reason(x_BTNH.dtype.name)
    if needed > SBUF_PARTITION_BYTES:
        reason = f"takes heads of up to {SBUF_PARTITION_BYTES} bytes of a partition, not {needed}"
    if reason is not None:
        raise KernelError(f"nki_rotate {reason}.", hint="call axcore.layers.rotate")


@jax.custom_vjp
def _rotated(x_BTNH: Array, cos_BTF: Array, sin_BTF: Array) -> Array:
    x_MPD = tiled(x_BTNH.reshape(*x_BTNH.shape[:2], -1))
    outputs = jax.ShapeDtypeStruct(x_MPD.shape, x_MPD.dtype)
    y_MPD = call_kernel(rope, outputs, x_MPD, tiled(cos_BTF), tiled(sin_BTF))
    return untiled(y_MPD, x_BTNH.shape, num_rows=cos_BTF.shape[0] * cos_BTF.shape[1])


def _forward(x_BTNH: Array, cos_BTF: Array, sin_BTF: Array) -> tuple[Array, tuple[Array, Array]]:
    return _rotated(x_BTNH, cos_BTF, sin_BTF), (cos_BTF, sin_BTF)


def _backward(residuals: tuple[Array, Array], dy_BTNH: Array) -> tuple[Array, Array, Array]:
    """Rotates back; angles come from integers, so they carry no gradient."""
    cos_BTF, sin_BTF = residuals
    none = jnp.zeros_like(cos_BTF)
    return _rotated(dy_BTNH, cos_BTF, -sin_BTF), none, none


_rotated.defvjp(_forward, _backward)
