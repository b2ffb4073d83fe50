"""The meaning of cross-entropy: plain `jax.numpy` on the full float32 logits."""

import jax.numpy as jnp
from jax import Array
from jax.lax import Precision, stop_gradient

from axcore.ops.cross_entropy_types import CrossEntropyInputs, CrossEntropySpec, CrossEntropySums


def cross_entropy_reference(inputs: CrossEntropyInputs, spec: CrossEntropySpec) -> CrossEntropySums:
    """Return the sums, from logits `[B, T, V]` held whole."""
    x_BTD, w = inputs.x_BTD.astype(jnp.float32), _rounded(inputs).astype(jnp.float32)
    w_DV = w.T if spec.vocabulary_first else w
    logits_BTV = jnp.matmul(x_BTD, w_DV, precision=Precision.HIGHEST)
    if spec.soft_cap is not None:
        logits_BTV = spec.soft_cap * jnp.tanh(logits_BTV / spec.soft_cap)
    lse_BT = _logsumexp(logits_BTV)
    target_BT = jnp.take_along_axis(logits_BTV, inputs.targets_BT[..., None], axis=-1)[..., 0]
    weights_BT = inputs.weights_BT.astype(jnp.float32)
    z_loss = spec.z_loss * jnp.sum(weights_BT * jnp.square(lse_BT))
    correct_BT = target_BT >= jnp.max(logits_BTV, axis=-1)
    return CrossEntropySums(
        loss=jnp.sum(weights_BT * (lse_BT - target_BT)) + z_loss,
        weight=jnp.sum(weights_BT),
        z_loss=stop_gradient(z_loss),
        correct=stop_gradient(jnp.sum(weights_BT * correct_BT.astype(jnp.float32))),
    )


def _rounded(inputs: CrossEntropyInputs) -> Array:
    return inputs.w.astype(inputs.x_BTD.dtype)


def _logsumexp(logits_BTV: Array) -> Array:
    maximum_BT = stop_gradient(jnp.max(logits_BTV, axis=-1))
    return maximum_BT + jnp.log(jnp.sum(jnp.exp(logits_BTV - maximum_BT[..., None]), axis=-1))
