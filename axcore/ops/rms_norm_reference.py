"""The meaning of RMS normalisation: plain `jax.numpy` in float32."""

import jax.numpy as jnp
from jax import Array


def rms_norm_reference(
    x: Array, scale_D: Array | None, epsilon: float, scale_offset: float
) -> Array:
    """Return the normalised `x`; see `rms_norm`."""
    x_float = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(x_float), axis=-1, keepdims=True)
    y = x_float / jnp.sqrt(mean_square + epsilon)
    if scale_D is not None:
        y = y * (scale_offset + scale_D.astype(jnp.float32)).reshape((1,) * (x.ndim - 1) + (-1,))
    return y.astype(x.dtype)
