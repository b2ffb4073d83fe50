"""Cross-entropy on TPU by Pallas kernels that never write a logit to memory.

Four products of all tokens with the whole vocabulary: logits and the gradient of `x` forward,
logits again and the gradient of `w` backward. Beside those gradients memory holds a few numbers a
token. Without gradients there is one product.

Under a mesh each device works on its own tokens; where the vocabulary is split over devices that
have the same tokens, each works on its own words, and they exchange a few numbers a token and sum
up the gradient of `x`.

Letters: R tokens, V vocabulary, D width.
"""

from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from axcore.ops import (
    Call,
    CrossEntropyInputs,
    CrossEntropySpec,
    CrossEntropySums,
    choose_tiles,
)
from axcore.parallel import CrossEntropySplit
from axl_tpu.kernels.cross_entropy_backward import projection_gradient
from axl_tpu.kernels.cross_entropy_forward import TokenParts, token_parts
from axl_tpu.kernels.cross_entropy_tiles import TILES, CrossEntropyTiles, whole

DTYPES = ("bfloat16", "float32")
MAX_WIDTH = {"bfloat16": 8192, "float32": 4096}
"""Widest rows of which blocks of tokens and words fit VMEM."""


def accepts(call: Call) -> str | None:
    """Returns None where the kernel can serve the call, else the reason why not."""
    for name in ("x", "w", "weights"):
        if call.dtype(name) not in DTYPES:
            return f"takes {name} of bfloat16 and float32, not {call.dtype(name)}"
    if 0 in (*call.shape("x"), *call.shape("w")):
        return f"takes no empty array, not x {call.shape('x')} and w {call.shape('w')}"
    width, most = call.shape("x")[-1], MAX_WIDTH[call.dtype("x")]
    if width > most:
        return f"takes widths up to {most} of {call.dtype('x')}, not {width}"
    return None


def tpu_cross_entropy(
    inputs: CrossEntropyInputs, spec: CrossEntropySpec, *, interpret: Any = False
) -> CrossEntropySums:
    """Returns the sums over all tokens.

    Products take x's dtype and accumulate in float32; all else is float32. A `w` of another dtype
    or layout than `[V, D]` of x's is copied to that once.

    Args:
        inputs: Arrays of a call that `accepts` takes.
        spec: The call's static choices.
        interpret: Runs the kernels by an interpreter, on any device.
    """
    arrays = {"x": inputs.x_BTD, "w": inputs.w}
    tiles = choose_tiles(TILES, Call.of("cross_entropy", arrays, {}))
    split = CrossEntropySplit.of(inputs, vocabulary_first=spec.vocabulary_first)
    tokens = _tokens(inputs, _How(spec, tiles, split, interpret))
    weights_BT = inputs.weights_BT.astype(jnp.float32)
    loss, z_loss, correct = (jnp.sum(weights_BT * one_BT) for one_BT in tokens)
    return CrossEntropySums(
        loss=loss,
        weight=jnp.sum(weights_BT),
        z_loss=lax.stop_gradient(z_loss),
        correct=lax.stop_gradient(correct),
    )


class _How(NamedTuple):
    spec: CrossEntropySpec
    tiles: CrossEntropyTiles
    split: CrossEntropySplit
    interpret: Any


_Outputs = tuple[Array, Array, Array]
_Residuals = tuple[CrossEntropyInputs, Array, Array]


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _tokens(inputs: CrossEntropyInputs, how: _How) -> _Outputs:
    """Returns loss, z-loss, and whether it is correct, of each token, before its weight."""
    split = how.split

    def own(x: Array, w: Array, targets: Array) -> _Outputs:
        return _outputs(_Part(x, w, targets, how).over_all_words(with_mean=False)[0], how)

    token = split.by_token()
    outputs: _Outputs = split.in_parts(own, _in_specs(how), (token,) * 3)(*inputs[:3])
    return outputs


def _forward(inputs: CrossEntropyInputs, how: _How) -> tuple[_Outputs, _Residuals]:
    split = how.split

    def own(x: Array, w: Array, targets: Array) -> tuple[_Outputs, Array, Array]:
        parts, dx = _Part(x, w, targets, how).over_all_words(with_mean=True)
        assert dx is not None
        return _outputs(parts, how), dx, parts.lse_R

    token, row = split.by_token(), split.by_token(None)
    run = split.in_parts(own, _in_specs(how), ((token,) * 3, row, token))
    outputs, dx_BTD, lse_BT = run(*inputs[:3])
    return outputs, (inputs, dx_BTD, lse_BT)


def _backward(how: _How, residuals: _Residuals, gradients: _Outputs) -> tuple[CrossEntropyInputs]:
    inputs, dx_BTD, lse_BT = residuals
    split, scale_BT = how.split, gradients[0]

    def own(x: Array, w: Array, targets: Array, lse: Array, scale: Array) -> Array:
        dw = _Part(x, w, targets, how).projection_gradient(lse, scale)
        return lax.psum(dw, split.tokens) if split.tokens else dw

    in_specs = (*_in_specs(how), split.by_token(), split.by_token())
    run = split.in_parts(own, in_specs, _in_specs(how)[1])
    dx_BTD = (scale_BT[..., None] * dx_BTD.astype(jnp.float32)).astype(dx_BTD.dtype)
    no_gradient = np.zeros(inputs.targets_BT.shape, jax.dtypes.float0)
    dw = run(*inputs[:3], lse_BT, scale_BT).astype(inputs.w.dtype)
    weights = jnp.zeros_like(inputs.weights_BT)
    return (CrossEntropyInputs(dx_BTD, dw, cast(Array, no_gradient), weights),)


_tokens.defvjp(_forward, _backward)


def _in_specs(how: _How) -> tuple[Any, Any, Any]:
    split = how.split
    by_word = split.by_word(vocabulary_first=how.spec.vocabulary_first)
    return split.by_token(None), by_word, split.by_token()


def _outputs(parts: TokenParts, how: _How) -> _Outputs:
    z_loss = how.spec.z_loss * jnp.square(parts.lse_R)
    correct = (parts.target_R >= parts.maximum_R).astype(jnp.float32)
    return parts.lse_R - parts.target_R + z_loss, z_loss, correct


class _Part:
    """A device's part of the tokens and of the words."""

    def __init__(self, x: Array, w: Array, targets: Array, how: _How) -> None:
        self.how, self.leading = how, targets.shape
        rounded = w.astype(x.dtype)
        w_VD = rounded if how.spec.vocabulary_first else rounded.T
        self.num_words, self.num_tokens = w_VD.shape[0], targets.size
        self.tiles = how.tiles.fitted(self.num_tokens, self.num_words)
        self.x_RD = self._in_blocks(x.reshape(-1, x.shape[-1]))
        self.w_VD = _padded(w_VD, whole(self.num_words, self.tiles.words))
        own = targets.reshape(-1).astype(jnp.int32) - how.split.first_word * self.num_words
        self.targets_R = self._in_blocks(jnp.where((own >= 0) & (own < self.num_words), own, -1))

    def over_all_words(self, *, with_mean: bool) -> tuple[TokenParts, Array | None]:
        """Returns each token's parts and the gradient of `x`, in the leading dimensions' shape."""
        own = token_parts(
            self.x_RD,
            self.w_VD,
            self.targets_R,
            self.how.spec,
            self.tiles,
            num_words=self.num_words,
            with_mean=with_mean,
            interpret=self.how.interpret,
        )
        names = self.how.split.vocab
        lse_R, target_R, maximum_R = own.lse_R, own.target_R, own.maximum_R
        if names:
            maximum_R = lax.pmax(own.maximum_R, names)
            highest_R = lax.pmax(own.lse_R, names)
            lse_R = highest_R + jnp.log(lax.psum(jnp.exp(own.lse_R - highest_R), names))
            target_R = lax.psum(own.target_R, names)
        numbers = (self._as_given(one) for one in (lse_R, target_R, maximum_R))
        whole_parts = TokenParts(*numbers, mean_RD=None)
        if own.mean_RD is None:
            return whole_parts, None
        dx_RD = self._gradient(own, lse_R, target_R)
        dx_RD = lax.psum(dx_RD, names) if names else dx_RD
        return whole_parts, self._as_given(dx_RD.astype(self.x_RD.dtype))

    def _gradient(self, own: TokenParts, lse_R: Array, target_R: Array) -> Array:
        """Returns what a device's words add to the gradient of its tokens, float32."""
        assert own.mean_RD is not None
        spec = self.how.spec
        factor_R = 1.0 + 2.0 * spec.z_loss * lse_R
        slope_R: Array | float = 1.0
        if spec.soft_cap is not None:
            slope_R = 1.0 - jnp.square(target_R / spec.soft_cap)
        others_R = factor_R * jnp.exp(own.lse_R - lse_R)
        own_R = slope_R * (factor_R * jnp.exp(target_R - lse_R) - 1.0)
        own_R = jnp.where(self.targets_R >= 0, own_R, 0.0)
        rows_RD = jnp.take(self.w_VD, self.targets_R, axis=0, mode="clip")
        return others_R[:, None] * own.mean_RD.astype(jnp.float32) + own_R[:, None] * (
            rows_RD.astype(jnp.float32)
        )

    def projection_gradient(self, lse: Array, scale: Array) -> Array:
        """Returns the gradient of a device's words by its tokens; of w's dtype or float32."""
        spec = self.how.spec
        return projection_gradient(
            self.x_RD,
            self.w_VD,
            self.targets_R,
            self._in_blocks(lse.reshape(-1)),
            self._in_blocks(scale.reshape(-1)),
            spec,
            self.tiles,
            num_words=self.num_words,
            dtype=jnp.float32,
            interpret=self.how.interpret,
        )

    def _in_blocks(self, x_R: Array) -> Array:
        return _padded(x_R, whole(self.num_tokens, self.tiles.rows))

    def _as_given(self, x_R: Array) -> Array:
        return x_R[: self.num_tokens].reshape(*self.leading, *x_R.shape[1:])


def _padded(x: Array, size: int) -> Array:
    if x.shape[0] == size:
        return x
    return jnp.pad(x, ((0, size - x.shape[0]), *[(0, 0)] * (x.ndim - 1)))
