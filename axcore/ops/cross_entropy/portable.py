"""Cross-entropy for every platform, in plain JAX, never all logits at once.

Time is cut into chunks, never the batch, which may be sharded. Where gradients are wanted, a
chunk's logits, losses and gradients are computed together in the forward pass: nothing is computed
twice, no logits outlive their chunk, and what is kept for backward is the gradients themselves.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from axcore.ops.blocks import Blocks
from axcore.ops.cross_entropy.chunk import TokenLosses, token_losses, token_losses_and_gradients
from axcore.ops.cross_entropy.types import (
    CrossEntropyInputs,
    CrossEntropySpec,
    CrossEntropySums,
    CrossEntropyTokens,
)

CHUNK_BYTES = 2**26
"""Float32 logits of one chunk, as long as there are not more than `MAX_CHUNKS`.

Larger ones gain nothing where there is more memory: docs/performance.md has the figures.
"""

MAX_CHUNKS = 16
"""Each chunk adds once to the whole gradient of `w`, so there are no more than memory needs."""

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
