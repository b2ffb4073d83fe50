"""RMS normalisation in plain JAX: the reference, and one that keeps little for backward.

Differentiating the reference keeps float32 copies of `x`: twice its size in bfloat16, and more. The
portable kernel keeps `x` as it came and one number a row.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from axcore.ops.rms_norm.op import RmsNormInputs, RmsNormSpec


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


_Residuals = tuple[Array, Array | None, Array]


def rms_norm_portable(inputs: RmsNormInputs, spec: RmsNormSpec) -> Array:
    """Return the normalised `x`; see `rms_norm`."""
    y: Array = _normalised(*inputs, spec.epsilon, spec.scale_offset)
    return y


def rms_norm_portable_backward(
    inputs: RmsNormInputs, spec: RmsNormSpec, *, dy: Array
) -> RmsNormInputs:
    """Return the gradients, for forward kernels that have no backward one of their own."""
    _, pull_back = jax.vjp(lambda inputs: rms_norm_portable(inputs, spec), inputs)
    gradients: RmsNormInputs = pull_back(dy)[0]
    return gradients


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _normalised(x: Array, scale_D: Array | None, epsilon: float, scale_offset: float) -> Array:
    return _forward(x, scale_D, epsilon, scale_offset)[0]


def _forward(
    x: Array, scale_D: Array | None, epsilon: float, scale_offset: float
) -> tuple[Array, _Residuals]:
    x_float = x.astype(jnp.float32)
    factor = lax.rsqrt(jnp.mean(jnp.square(x_float), axis=-1, keepdims=True) + epsilon)
    y = _scaled(x_float * factor, scale_D, scale_offset).astype(x.dtype)
    # One number a row is kept; computed again it would take another pass over `x`.
    return y, (x, scale_D, factor)


def _backward(
    epsilon: float, scale_offset: float, residuals: _Residuals, dy: Array
) -> tuple[Array, Array | None]:
    x, scale_D, factor = residuals
    normal = x.astype(jnp.float32) * factor
    dy_float = dy.astype(jnp.float32)
    gradient = _scaled(dy_float, scale_D, scale_offset)
    along = jnp.mean(gradient * normal, axis=-1, keepdims=True)
    dx = (factor * (gradient - normal * along)).astype(x.dtype)
    if scale_D is None:
        return dx, None
    leading = tuple(range(x.ndim - 1))
    return dx, jnp.sum(dy_float * normal, axis=leading).astype(scale_D.dtype)


_normalised.defvjp(_forward, _backward)


def _scaled(x: Array, scale_D: Array | None, scale_offset: float) -> Array:
    if scale_D is None:
        return x
    scale = scale_offset + scale_D.astype(jnp.float32)
    return x * scale.reshape((1,) * (x.ndim - 1) + (-1,))
