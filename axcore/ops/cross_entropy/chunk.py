# ruff: noqa: N815 - fields carry shape letters
"""The arithmetic of cross-entropy on one chunk of tokens, up to all of them.

Letters: B batch, T time of the chunk, D width, V vocabulary. Products take the inputs' dtype and
accumulate in float32; all else is float32.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from axcore.ops.cross_entropy.types import CrossEntropyInputs, CrossEntropySpec


class TokenLosses(NamedTuple):
    """What each token of a chunk adds, before its weight; float32 `[B, T]`."""

    loss_BT: Array
    z_loss_BT: Array
    correct_BT: Array


class ChunkGradients(NamedTuple):
    """Gradients of the weighted sum of a chunk's losses, float32."""

    x_BTD: Array
    w: Array


class _Logits(NamedTuple):
    value_BTV: Array
    capped_BTV: Array | None
    is_target_BTV: Array


def token_losses(inputs: CrossEntropyInputs, spec: CrossEntropySpec) -> TokenLosses:
    """Return the losses of a chunk's tokens."""
    return _losses(_logits(inputs, spec), spec)[0]


def token_losses_and_gradients(
    inputs: CrossEntropyInputs, spec: CrossEntropySpec
) -> tuple[TokenLosses, ChunkGradients]:
    """Return the losses of a chunk's tokens, and the gradients of their weighted sum."""
    logits = _logits(inputs, spec)
    losses, lse_BT = _losses(logits, spec)
    weights_BT = inputs.weights_BT.astype(jnp.float32)
    factor_BT = weights_BT * (1.0 + 2.0 * spec.z_loss * lse_BT)
    probabilities_BTV = jnp.exp(logits.value_BTV - lse_BT[..., None])
    gradient_BTV = factor_BT[..., None] * probabilities_BTV
    gradient_BTV -= jnp.where(logits.is_target_BTV, weights_BT[..., None], 0.0)
    if logits.capped_BTV is not None:
        gradient_BTV *= 1.0 - jnp.square(logits.capped_BTV)
    gradient_BTV = gradient_BTV.astype(inputs.x_BTD.dtype)
    back, outer = ("btv,vd->btd", "btv,btd->vd")
    if not spec.vocabulary_first:
        back, outer = ("btv,dv->btd", "btd,btv->dv")
    operands = (
        (gradient_BTV, inputs.x_BTD) if spec.vocabulary_first else (inputs.x_BTD, gradient_BTV)
    )
    return losses, ChunkGradients(
        x_BTD=_matmul(back, gradient_BTV, inputs.w), w=_matmul(outer, *operands)
    )


def _logits(inputs: CrossEntropyInputs, spec: CrossEntropySpec) -> _Logits:
    equation = "btd,vd->btv" if spec.vocabulary_first else "btd,dv->btv"
    value_BTV = _matmul(equation, inputs.x_BTD, inputs.w)
    capped_BTV = None
    if spec.soft_cap is not None:
        capped_BTV = jnp.tanh(value_BTV / spec.soft_cap)
        value_BTV = spec.soft_cap * capped_BTV
    index = lax.broadcasted_iota(inputs.targets_BT.dtype, value_BTV.shape, 2)
    return _Logits(value_BTV, capped_BTV, index == inputs.targets_BT[..., None])


def _losses(logits: _Logits, spec: CrossEntropySpec) -> tuple[TokenLosses, Array]:
    """Return the losses and the log-sum-exp.

    The target's logit is taken by a masked sum and not by a gather, so that a vocabulary that is
    sharded stays so.
    """
    value_BTV = logits.value_BTV
    maximum_BT = jnp.max(value_BTV, axis=-1)
    exponentials_BTV = jnp.exp(value_BTV - maximum_BT[..., None])
    lse_BT = maximum_BT + jnp.log(jnp.sum(exponentials_BTV, axis=-1))
    target_BT = jnp.sum(jnp.where(logits.is_target_BTV, value_BTV, 0.0), axis=-1)
    z_loss_BT = spec.z_loss * jnp.square(lse_BT)
    correct_BT = (target_BT >= maximum_BT).astype(jnp.float32)
    return TokenLosses(lse_BT - target_BT + z_loss_BT, z_loss_BT, correct_BT), lse_BT


def _matmul(equation: str, a: Array, b: Array) -> Array:
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)
