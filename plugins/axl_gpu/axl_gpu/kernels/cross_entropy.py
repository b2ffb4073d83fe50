"""Cross-entropy on Hopper GPUs by kernels of our own that write no logits to memory.

Forward multiplies all tokens with all words once, and keeps a log-sum-exp for each token. Backward
goes through the words in parts: a kernel computes the logits of a part again and writes their
gradient, which two ordinary products take. The most that memory holds is that of one part, in 16
bits, and the gradient of `x` in float32.

Under a mesh each device works on its own tokens; where the vocabulary is split over devices that
have the same tokens, each works on its own words, and they exchange a few numbers a token and sum
up the gradient of `x`.

Letters: R tokens, V vocabulary, D width, S parts of the vocabulary.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
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
    TileTable,
    choose_tiles,
    power_of_two,
)
from axcore.parallel import CrossEntropySplit
from axcore.plugins import Hardware
from axl_gpu.kernels.cross_entropy_kernels import (
    WORDS,
    CrossEntropyTiles,
    Words,
    logit_gradients,
    statistics,
)
from axl_gpu.kernels.matmul_tiles import SHARED_BYTES

WIDTHS = 64
"""The width is a multiple of it."""


class Kernels(NamedTuple):
    """Functions like `statistics` and `logit_gradients`."""

    statistics: Callable[..., Any]
    logit_gradients: Callable[..., Array]


KERNELS = Kernels(statistics, logit_gradients)


def default_tiles(call: Call, hardware: Hardware) -> CrossEntropyTiles:
    """Returns the largest tiles that leave room for numbers of each token in registers."""
    return CrossEntropyTiles()


def candidates(call: Call, hardware: Hardware) -> Iterator[CrossEntropyTiles]:
    """Yields what fits the shared memory of a Hopper."""
    for num_ahead, run, band in product((2, 3, 4), (4, 8, 16), (8, 16)):
        tiles = CrossEntropyTiles(num_ahead=num_ahead, run=run, band=band)
        if tiles.shared_bytes <= SHARED_BYTES:
            yield tiles


def bucket(call: Call) -> dict[str, int]:
    """Returns the width, and about how many words there are."""
    size = 1
    for one in call.shape("w"):
        size *= one
    width = call.shape("x")[-1]
    return {"width": width, "vocabulary": power_of_two(size // width)}


TILES = TileTable(
    kernel="cross_entropy/gpu_cross_entropy",
    package="axl_gpu.kernels",
    default=default_tiles,
    candidates=candidates,
    bucket=bucket,
)


def accepts(call: Call) -> str | None:
    """Returns None where the kernels can serve the call, else the reason why not."""
    if call.dtype("x") != "bfloat16":
        return f"takes x of bfloat16, not {call.dtype('x')}"
    if 0 in (*call.shape("x"), *call.shape("w")):
        return f"takes no empty array, not x {call.shape('x')} and w {call.shape('w')}"
    width = call.shape("x")[-1]
    if width % WIDTHS:
        return f"takes widths that are multiples of {WIDTHS}, not {width}"
    return None


def gpu_cross_entropy(
    inputs: CrossEntropyInputs, spec: CrossEntropySpec, *, kernels: Kernels = KERNELS
) -> CrossEntropySums:
    """Returns the sums over all tokens.

    Products take x's dtype and accumulate in float32; all else is float32. A `w` of another dtype,
    or with a vocabulary that is no multiple of 64, is copied once.

    Args:
        inputs: Arrays of a call that `accepts` takes.
        spec: The call's static choices.
        kernels: Both kernels, or what stands in for them where there is no GPU.
    """
    arrays = {"x": inputs.x_BTD, "w": inputs.w}
    tiles = choose_tiles(TILES, Call.of("cross_entropy", arrays, {}))
    split = CrossEntropySplit.of(inputs, vocabulary_first=spec.vocabulary_first)
    tokens = _tokens(inputs, _How(spec, tiles, split, kernels))
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
    kernels: Kernels


_Outputs = tuple[Array, Array, Array]
_Residuals = tuple[CrossEntropyInputs, Array]


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _tokens(inputs: CrossEntropyInputs, how: _How) -> _Outputs:
    """Returns loss, z-loss, and whether it is correct, of each token, before its weight."""
    return _forward(inputs, how)[0]


def _forward(inputs: CrossEntropyInputs, how: _How) -> tuple[_Outputs, _Residuals]:
    token = how.split.by_token()

    def own(x: Array, w: Array, targets: Array) -> tuple[Array, Array, Array]:
        return _Part(x, w, targets, how).over_all_words()

    numbers = how.split.in_parts(own, _in_specs(how), (token,) * 3)(*inputs[:3])
    maximum_BT, lse_BT, target_BT = numbers
    z_loss_BT = how.spec.z_loss * jnp.square(lse_BT)
    correct_BT = (target_BT >= maximum_BT).astype(jnp.float32)
    return (lse_BT - target_BT + z_loss_BT, z_loss_BT, correct_BT), (inputs, lse_BT)


def _backward(how: _How, residuals: _Residuals, gradients: _Outputs) -> tuple[CrossEntropyInputs]:
    inputs, lse_BT = residuals
    split, in_specs = how.split, _in_specs(how)

    def own(x: Array, w: Array, targets: Array, lse: Array, scale: Array) -> tuple[Array, Array]:
        dx, dw = _Part(x, w, targets, how).gradients(lse, scale)
        dx = lax.psum(dx, split.vocab) if split.vocab else dx
        return dx.astype(x.dtype), lax.psum(dw, split.tokens) if split.tokens else dw

    run = split.in_parts(own, (*in_specs, *(split.by_token(),) * 2), in_specs[:2])
    dx_BTD, dw = run(*inputs[:3], lse_BT, gradients[0])
    no_gradient = np.zeros(inputs.targets_BT.shape, jax.dtypes.float0)
    weights = jnp.zeros_like(inputs.weights_BT)
    dw = dw.astype(inputs.w.dtype)
    return (CrossEntropyInputs(dx_BTD, dw, cast(Array, no_gradient), weights),)


_tokens.defvjp(_forward, _backward)


def _in_specs(how: _How) -> tuple[Any, Any, Any]:
    split = how.split
    by_word = split.by_word(vocabulary_first=how.spec.vocabulary_first)
    return split.by_token(None), by_word, split.by_token()


class _Part:
    """A device's part of the tokens and of the words."""

    def __init__(self, x: Array, w: Array, targets: Array, how: _How) -> None:
        self.how, self.leading = how, targets.shape
        self.word_axis = 0 if how.spec.vocabulary_first else 1
        num_words = w.shape[self.word_axis]
        self.dtype = jnp.float32 if how.split.tokens else w.dtype
        self.x_RD = self._in_tiles(x.reshape(-1, x.shape[-1]))
        padded = _padded(w.astype(x.dtype), WORDS, self.word_axis)
        self.words = Words(padded, num_words, how.spec.vocabulary_first)
        own = targets.reshape(-1).astype(jnp.int32) - how.split.first_word * num_words
        self.targets_R = self._in_tiles(jnp.where((own >= 0) & (own < num_words), own, -1))

    def over_all_words(self) -> tuple[Array, Array, Array]:
        """Returns each token's largest logit, log-sum-exp and target's logit."""
        how = self.how
        found = how.kernels.statistics(
            self.x_RD, self.words, self.targets_R, how.spec, tiles=how.tiles
        )
        maximum_R = jnp.max(found.maximum_SR, axis=0)
        target_R = jnp.sum(found.target_SR, axis=0)
        if how.split.vocab:
            maximum_R = lax.pmax(maximum_R, how.split.vocab)
            target_R = lax.psum(target_R, how.split.vocab)
        sum_R = jnp.sum(found.sum_SR * jnp.exp(found.maximum_SR - maximum_R[None]), axis=0)
        sum_R = lax.psum(sum_R, how.split.vocab) if how.split.vocab else sum_R
        numbers = (maximum_R, maximum_R + jnp.log(sum_R), target_R)
        maximum, lse, target = (one[: self.num_tokens].reshape(self.leading) for one in numbers)
        return maximum, lse, target

    def gradients(self, lse: Array, scale: Array) -> tuple[Array, Array]:
        """Returns those of a device's tokens, by its words, and the other way round.

        The first are float32; the second too where they are still to be summed over devices.

        Args:
            lse: Log-sum-exp of each token.
            scale: Gradient by its loss.
        """
        tiles, w = self.how.tiles, self.words.w
        numbers = (lse.reshape(-1), scale.reshape(-1).astype(jnp.float32))
        tokens = (self.targets_R, *(self._in_tiles(one) for one in numbers))
        all_words = w.shape[self.word_axis]
        num_blocks = max(1, all_words // tiles.all_words // tiles.parts)
        size = num_blocks * tiles.all_words

        def add(part: Array, sums: tuple[Array, Array], size: int = size) -> tuple[Array, Array]:
            dx_RD, dw = sums
            first = part * num_blocks
            g_RN = self._logit_gradients(tokens, first, size)
            at = first * tiles.all_words
            own = lax.dynamic_slice_in_dim(w, at, size, self.word_axis)
            back, outer = self._equations
            new = _product(outer, g_RN, self.x_RD).astype(dw.dtype)
            dw = lax.dynamic_update_slice_in_dim(dw, new, at, self.word_axis)
            return dx_RD + _product(back, g_RN, own), dw

        zeros = jnp.zeros(self.x_RD.shape, jnp.float32), jnp.zeros(w.shape, self.dtype)
        num_parts, rest = divmod(all_words, size)
        sums = lax.fori_loop(0, num_parts, add, zeros)
        dx_RD, dw = add(jnp.int32(num_parts), sums, rest) if rest else sums
        dx = dx_RD[: self.num_tokens].reshape(*self.leading, -1)
        return dx, lax.slice_in_dim(dw, 0, self.words.num_words, axis=self.word_axis)

    def _logit_gradients(self, tokens: tuple[Array, ...], first: Array, size: int) -> Array:
        """Returns the gradient by the logits of so many words, from a block on."""
        how = self.how
        g_RN = how.kernels.logit_gradients(
            self.x_RD,
            self.words,
            tokens,
            how.spec,
            first_block=first,
            num_blocks=-(-size // how.tiles.all_words),
            tiles=how.tiles,
        )
        return g_RN[:, :size]

    @property
    def _equations(self) -> tuple[str, str]:
        """The products of the logits' gradient with `w`, and with `x`."""
        if self.how.spec.vocabulary_first:
            return "rn,nd->rd", "rn,rd->nd"
        return "rn,dn->rd", "rn,rd->dn"

    @property
    def num_tokens(self) -> int:
        """Tokens without padding."""
        return int(np.prod(self.leading, dtype=int))

    def _in_tiles(self, x_R: Array) -> Array:
        return _padded(x_R, self.how.tiles.rows, 0)


def _padded(x: Array, multiple: int, axis: int) -> Array:
    """Returns an array whose size along an axis is a multiple of a number."""
    more = -x.shape[axis] % multiple
    if not more:
        return x
    return jnp.pad(x, [(0, more if one == axis else 0) for one in range(x.ndim)])


def _product(equation: str, a: Array, b: Array) -> Array:
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)
