"""The meaning of cross-entropy: plain `jax.numpy` on the full float32 logits."""

import jax.numpy as jnp
from jax import Array
from jax.lax import Precision, stop_gradient

from axcore.ops.cross_entropy.types import (
    CrossEntropyInputs,
    CrossEntropySpec,
    CrossEntropySums,
    CrossEntropyTokens,
    TokenStatistics,
)


def cross_entropy_reference(inputs: CrossEntropyInputs, spec: CrossEntropySpec) -> CrossEntropySums:
    """Return the sums, from logits `[B, T, V]` held whole."""
    tokens = CrossEntropyTokens(inputs.x_BTD, inputs.w, inputs.targets_BT)
    maximum_BT, lse_BT, target_BT, _ = token_statistics_reference(tokens, spec)
    weights_BT = inputs.weights_BT.astype(jnp.float32)
    z_loss = spec.z_loss * jnp.sum(weights_BT * jnp.square(lse_BT))
    correct_BT = target_BT >= maximum_BT
    return CrossEntropySums(
        loss=jnp.sum(weights_BT * (lse_BT - target_BT)) + z_loss,
        weight=jnp.sum(weights_BT),
        z_loss=stop_gradient(z_loss),
        correct=stop_gradient(jnp.sum(weights_BT * correct_BT.astype(jnp.float32))),
    )


def token_statistics_reference(
    inputs: CrossEntropyTokens, spec: CrossEntropySpec
) -> TokenStatistics:
    """Return what forward kernels do, from logits held whole."""
    x_BTD, w = inputs.x_BTD.astype(jnp.float32), _rounded(inputs).astype(jnp.float32)
    w_DV = w.T if spec.vocabulary_first else w
    logits_BTV = jnp.matmul(x_BTD, w_DV, precision=Precision.HIGHEST)
    if spec.soft_cap is not None:
        logits_BTV = spec.soft_cap * jnp.tanh(logits_BTV / spec.soft_cap)
    targets_BT = inputs.targets_BT[..., None]
    target_BT = jnp.take_along_axis(logits_BTV, targets_BT, axis=-1)[..., 0]
    target_BT = jnp.where(inputs.targets_BT < 0, 0.0, target_BT)
    return TokenStatistics(jnp.max(logits_BTV, axis=-1), _logsumexp(logits_BTV), target_BT)


def _rounded(inputs: CrossEntropyTokens) -> Array:
    return inputs.w.astype(inputs.x_BTD.dtype)


def _logsumexp(logits_BTV: Array) -> Array:
    maximum_BT = stop_gradient(jnp.max(logits_BTV, axis=-1))
    return maximum_BT + jnp.log(jnp.sum(jnp.exp(logits_BTV - maximum_BT[..., None]), axis=-1))
