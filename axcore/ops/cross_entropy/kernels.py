"""Cross-entropy in plain JAX: the reference on the full logits, and one in chunks of tokens.

Letters: B batch, T time of the chunk, D width, V vocabulary. Products take the inputs' dtype and
accumulate in float32; all else is float32.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.lax import Precision, stop_gradient

from axcore.ops.blocks import Blocks
from axcore.ops.cross_entropy.sharding import (
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
    # For the products; the difference from 1 at the target was taken in float32.
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


CHUNK_BYTES = 2**26
"""Float32 logits of one chunk, as long as there are not more than `MAX_CHUNKS`.

Larger ones gain nothing where there is more memory: docs/performance.md has the figures.
"""

MAX_CHUNKS = 16
"""Each chunk adds once to the full gradient of `w`, so there are no more than memory needs."""

MAX_UNROLLED = 2
"""So few chunks are written out: XLA optimises across them, and counts their FLOPs."""


def cross_entropy_portable(inputs: CrossEntropyInputs, spec: CrossEntropySpec) -> CrossEntropySums:
    """Return the sums; see `cross_entropy_reference` for the meaning."""
    x_BTD = inputs.x_BTD.reshape(-1, *inputs.x_BTD.shape[-2:])
    flat = CrossEntropyInputs(
        x_BTD,
        inputs.w,
        inputs.targets_BT.reshape(x_BTD.shape[:2]),
        inputs.weights_BT.reshape(x_BTD.shape[:2]),
    )
    loss, z_loss, correct = _sums(flat, spec)
    return CrossEntropySums(
        loss=loss,
        weight=jnp.sum(inputs.weights_BT.astype(jnp.float32)),
        z_loss=lax.stop_gradient(z_loss),
        correct=lax.stop_gradient(correct),
    )


def cross_entropy_portable_backward(
    inputs: CrossEntropyTokens, spec: CrossEntropySpec, *, scale_BT: Array, **statistics: Any
) -> CrossEntropyTokens:
    """Return the gradients, for forward kernels that have no backward one of their own."""

    def loss(x_BTD: Array, w: Array) -> Array:
        given = CrossEntropyInputs(x_BTD, w, inputs.targets_BT, scale_BT)
        return cross_entropy_portable(given, spec).loss

    dx_BTD, dw = jax.grad(loss, argnums=(0, 1))(inputs.x_BTD, inputs.w)
    return CrossEntropyTokens(dx_BTD, dw, cast(Array, None))


_C = TypeVar("_C")
_Y = TypeVar("_Y")
_Chunk = tuple[Array, Array, Array]
_Outputs = tuple[Array, Array, Array]
_Residuals = tuple[Array, Array, Array, CrossEntropyInputs]


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _sums(inputs: CrossEntropyInputs, spec: CrossEntropySpec) -> _Outputs:
    """Return loss, z-loss and correct tokens, each summed by weight."""
    cut = _cut(inputs, spec)
    w = inputs.w.astype(inputs.x_BTD.dtype)

    def step(_: None, chunk: _Chunk) -> tuple[None, TokenLosses]:
        return None, token_losses(_as_inputs(chunk, w), spec)

    _, losses = _loop(step, None, _chunks(inputs, cut))
    return _weighted(_join(losses, cut), inputs)


def _forward(inputs: CrossEntropyInputs, spec: CrossEntropySpec) -> tuple[_Outputs, _Residuals]:
    cut = _cut(inputs, spec)
    w = inputs.w.astype(inputs.x_BTD.dtype)

    def step(dw: Array, chunk: _Chunk) -> tuple[Array, tuple[TokenLosses, Array]]:
        losses, gradients = token_losses_and_gradients(_as_inputs(chunk, w), spec)
        # Gradients are made in the forward pass, while a chunk's logits are there, so that these
        # are computed once and never kept. Backward only scales them: a loss is a scalar.
        return dw + gradients.w, (losses, gradients.x_BTD.astype(inputs.x_BTD.dtype))

    zeros = jnp.zeros(inputs.w.shape, jnp.float32)
    dw, (losses, dx) = _loop(step, zeros, _chunks(inputs, cut))
    joined = _join(losses, cut)
    residuals = (cut.join(dx, axis=1), dw.astype(inputs.w.dtype), joined.loss_BT, inputs)
    return _weighted(joined, inputs), residuals


def _backward(
    spec: CrossEntropySpec, residuals: _Residuals, gradients: _Outputs
) -> tuple[CrossEntropyInputs]:
    dx_BTD, dw, loss_BT, inputs = residuals
    scale = gradients[0]
    none = np.zeros(inputs.targets_BT.shape, jax.dtypes.float0)
    # In float32: `scale` is about one over the number of tokens, and a product of two small
    # numbers in 16 bits may lose bits, or all of them in float16.
    scaled = CrossEntropyInputs(
        x_BTD=(scale * dx_BTD.astype(jnp.float32)).astype(dx_BTD.dtype),
        w=(scale * dw.astype(jnp.float32)).astype(dw.dtype),
        targets_BT=cast(Array, none),
        weights_BT=(scale * loss_BT).astype(inputs.weights_BT.dtype),
    )
    return (scaled,)


_sums.defvjp(_forward, _backward)


def _cut(inputs: CrossEntropyInputs, spec: CrossEntropySpec) -> Blocks:
    """Return how time is cut."""
    batch, time = inputs.targets_BT.shape
    vocabulary = inputs.w.shape[0 if spec.vocabulary_first else 1]
    wanted = -(-4 * batch * time * vocabulary // CHUNK_BYTES)
    # Two at least, which halves what logits take; `MAX_UNROLLED` has both written out.
    num = max(1, min(max(wanted, 2), MAX_CHUNKS, time))
    return Blocks(time, max(1, -(-time // num)))


def _chunks(inputs: CrossEntropyInputs, cut: Blocks) -> _Chunk:
    """Return the token arrays in chunks that lead; padding has weight 0."""
    x, targets, weights = (
        cut.cut(part, axis=1) for part in (inputs.x_BTD, inputs.targets_BT, inputs.weights_BT)
    )
    return x, targets, weights


def _as_inputs(chunk: _Chunk, w: Array) -> CrossEntropyInputs:
    x_BTD, targets_BT, weights_BT = chunk
    return CrossEntropyInputs(x_BTD, w, targets_BT, weights_BT)


def _loop(step: Callable[[_C, _Chunk], tuple[_C, _Y]], start: _C, chunks: _Chunk) -> tuple[_C, _Y]:
    return lax.scan(step, start, chunks, unroll=chunks[0].shape[0] <= MAX_UNROLLED)


def _join(losses: TokenLosses, cut: Blocks) -> TokenLosses:
    return TokenLosses(*(cut.join(part, axis=1) for part in losses))


def _weighted(losses: TokenLosses, inputs: CrossEntropyInputs) -> _Outputs:
    weights_BT = inputs.weights_BT.astype(jnp.float32)
    loss, z_loss, correct = (jnp.sum(weights_BT * part_BT) for part_BT in losses)
    return loss, z_loss, correct
