"""The meaning of RMS normalisation: plain `jax.numpy` in float32."""

import jax.numpy as jnp
from jax import Array

from axcore.ops.rms_norm.types import RmsNormInputs, RmsNormSpec


def rms_norm_reference(inputs: RmsNormInputs, spec: RmsNormSpec) -> Array:
    """Return the normalised `x`; see `rms_norm`."""
    x, scale_D = inputs
    x_float = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(x_float), axis=-1, keepdims=True)
    y = x_float / jnp.sqrt(mean_square + spec.epsilon)
    if scale_D is not None:
        factor_D = spec.scale_offset + scale_D.astype(jnp.float32)
        y = y * factor_D.reshape((1,) * (x.ndim - 1) + (-1,))
    return y.astype(x.dtype)
