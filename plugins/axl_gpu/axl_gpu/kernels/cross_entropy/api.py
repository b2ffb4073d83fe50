"""Cross-entropy on Hopper GPUs by kernels of our own that write no logits to memory.

Forward multiplies all tokens with the full vocabulary once, and keeps a log-sum-exp for each
token. Backward goes through the vocabulary in parts: a kernel computes a part's logits again and
writes their gradient, which two ordinary products take. Memory holds at most one part of it, in 16
bits, and the gradient of `x` in float32.

Letters: R tokens, V vocabulary, D width, S parts of the vocabulary.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from axcore.ops import (
    BlockSizeTable,
    Call,
    CrossEntropySpec,
    CrossEntropyTokens,
    TokenStatistics,
    choose_block_sizes,
    power_of_two,
)
from axcore.plugins import Hardware
from axl_gpu.kernels.cross_entropy.kernels import (
    VOCABULARY_MULTIPLE,
    CrossEntropyBlockSizes,
    Vocabulary,
    logit_gradients,
    statistics,
)
from axl_gpu.kernels.matmul.block_sizes import SHARED_BYTES

WIDTHS = 64
"""The width is a multiple of it."""


class Kernels(NamedTuple):
    """Functions like `statistics` and `logit_gradients`."""

    statistics: Callable[..., Any]
    logit_gradients: Callable[..., Array]


KERNELS = Kernels(statistics, logit_gradients)


def default_block_sizes(call: Call, hardware: Hardware) -> CrossEntropyBlockSizes:
    """Return the largest tiles that leave room for numbers of each token in registers."""
    return CrossEntropyBlockSizes()


def candidates(call: Call, hardware: Hardware) -> Iterator[CrossEntropyBlockSizes]:
    """Yield what fits the shared memory of a Hopper."""
    for num_ahead, run, band in product((2, 3, 4), (4, 8, 16), (8, 16)):
        block_sizes = CrossEntropyBlockSizes(num_ahead=num_ahead, run=run, band=band)
        if block_sizes.shared_bytes <= SHARED_BYTES:
            yield block_sizes


def bucket(call: Call) -> dict[str, int]:
    """Return the width, and about how large the vocabulary is."""
    size = 1
    for one in call.shape("w"):
        size *= one
    width = call.shape("x")[-1]
    return {"width": width, "vocabulary": power_of_two(size // width)}


BLOCK_SIZES = BlockSizeTable(
    kernel="cross_entropy/gpu_cross_entropy",
    package=__package__,
    default=default_block_sizes,
    candidates=candidates,
    bucket=bucket,
)


def unsupported_reason(call: Call) -> str | None:
    """Return None where the kernels can serve the call, else the reason why not."""
    if call.dtype("x") != "bfloat16":
        return f"takes x of bfloat16, not {call.dtype('x')}"
    if 0 in (*call.shape("x"), *call.shape("w")):
        return f"takes no empty array, not x {call.shape('x')} and w {call.shape('w')}"
    width = call.shape("x")[-1]
    if width % WIDTHS:
        return f"takes widths that are multiples of {WIDTHS}, not {width}"
    return None


def gpu_cross_entropy(
    inputs: CrossEntropyTokens, spec: CrossEntropySpec, *, kernels: Kernels = KERNELS
) -> TokenStatistics:
    """Return what the logits give each token.

    Products take x's dtype and accumulate in float32; all else is float32. A `w` of another dtype,
    or with a vocabulary that is not a multiple of 64, is copied once.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: The call's static choices.
        kernels: Both kernels, or what stands in for them where there is no GPU.
    """
    return _Tokens(inputs, spec, kernels).statistics()


def gpu_cross_entropy_backward(
    inputs: CrossEntropyTokens,
    spec: CrossEntropySpec,
    *,
    lse_BT: Array,
    scale_BT: Array,
    kernels: Kernels = KERNELS,
    **unused: Array | None,
) -> CrossEntropyTokens:
    """Return the gradients of `x`, float32, and of `w`, of its dtype unless sums are partial.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: The call's static choices.
        lse_BT: Log-sum-exp of each token over the full vocabulary.
        scale_BT: Gradient by its loss.
        kernels: As of `gpu_cross_entropy`.
        **unused: What else forward kernels leave.
    """
    dx, dw = _Tokens(inputs, spec, kernels).gradients(lse_BT, scale_BT)
    return CrossEntropyTokens(dx, dw, cast(Array, None))


class _Tokens:
    """A call in full tiles."""

    def __init__(
        self, inputs: CrossEntropyTokens, spec: CrossEntropySpec, kernels: Kernels
    ) -> None:
        x, w, targets = inputs
        call = Call.of("cross_entropy", {"x": x, "w": w}, {})
        self.block_sizes = choose_block_sizes(BLOCK_SIZES, call)
        self.spec, self.kernels, self.leading = spec, kernels, targets.shape
        # Partial sums of devices are added up outside; rounded to 16 bits each before, their sum
        # would be coarser than that of one device.
        self.dtype = jnp.float32 if spec.sums_are_partial else w.dtype
        self.word_axis = 0 if spec.vocabulary_first else 1
        self.x_RD = self._in_tiles(x.reshape(-1, x.shape[-1]))
        # Only the vocabulary to a multiple of 64, for copies; blocks may reach beyond, and mask
        # it.
        padded = _padded(w.astype(x.dtype), VOCABULARY_MULTIPLE, self.word_axis)
        self.vocabulary = Vocabulary(padded, w.shape[self.word_axis], spec.vocabulary_first)
        self.targets_R = self._in_tiles(targets.reshape(-1).astype(jnp.int32))

    def statistics(self) -> TokenStatistics:
        """Return each token's largest logit, log-sum-exp and target's logit."""
        found = self.kernels.statistics(
            self.x_RD, self.vocabulary, self.targets_R, self.spec, block_sizes=self.block_sizes
        )
        maximum_R = jnp.max(found.maximum_SR, axis=0)
        target_R = jnp.sum(found.target_SR, axis=0)
        sum_R = jnp.sum(found.sum_SR * jnp.exp(found.maximum_SR - maximum_R[None]), axis=0)
        numbers = (maximum_R, maximum_R + jnp.log(sum_R), target_R)
        return TokenStatistics(*(one[: self.num_tokens].reshape(self.leading) for one in numbers))

    def gradients(self, lse: Array, scale: Array) -> tuple[Array, Array]:
        """Return those of tokens, float32, and of the vocabulary.

        Args:
            lse: Log-sum-exp of each token.
            scale: Gradient by its loss.
        """
        block_sizes, w = self.block_sizes, self.vocabulary.w
        numbers = (lse.reshape(-1), scale.reshape(-1).astype(jnp.float32))
        tokens = (self.targets_R, *(self._in_tiles(one) for one in numbers))
        # Parts, since the gradient of all logits at once is as large as the logits that forward
        # avoids; not one part a block, since products of few columns do not fill the matrix
        # units.
        block_vocabulary = w.shape[self.word_axis]
        num_blocks = max(1, block_vocabulary // block_sizes.block_vocabulary // block_sizes.parts)
        size = num_blocks * block_sizes.block_vocabulary

        def add(part: Array, sums: tuple[Array, Array], size: int = size) -> tuple[Array, Array]:
            dx_RD, dw = sums
            first = part * num_blocks
            g_RN = self._logit_gradients(tokens, first, size)
            at = first * block_sizes.block_vocabulary
            own = lax.dynamic_slice_in_dim(w, at, size, self.word_axis)
            back, outer = self._equations
            # Each part's own columns of `dw` are complete after one product, so they may be
            # rounded here; `dx` is the sum over parts, and stays in float32.
            new = _matmul(outer, g_RN, self.x_RD).astype(dw.dtype)
            dw = lax.dynamic_update_slice_in_dim(dw, new, at, self.word_axis)
            return dx_RD + _matmul(back, g_RN, own), dw

        zeros = jnp.zeros(self.x_RD.shape, jnp.float32), jnp.zeros(w.shape, self.dtype)
        # A loop keeps one part in memory at a time, where unrolled parts may overlap. Sizes are
        # static, so what is left over is a call of its own.
        num_parts, rest = divmod(block_vocabulary, size)
        sums = lax.fori_loop(0, num_parts, add, zeros)
        dx_RD, dw = add(jnp.int32(num_parts), sums, rest) if rest else sums
        dx = dx_RD[: self.num_tokens].reshape(*self.leading, -1)
        return dx, lax.slice_in_dim(dw, 0, self.vocabulary.vocabulary_size, axis=self.word_axis)

    def _logit_gradients(self, tokens: tuple[Array, ...], first: Array, size: int) -> Array:
        """Return the gradient by the logits of so many words, from a block on."""
        g_RN = self.kernels.logit_gradients(
            self.x_RD,
            self.vocabulary,
            tokens,
            self.spec,
            first_block=first,
            num_blocks=-(-size // self.block_sizes.block_vocabulary),
            block_sizes=self.block_sizes,
        )
        # The kernel writes full blocks; the last part may end within one.
        return g_RN[:, :size]

    @property
    def _equations(self) -> tuple[str, str]:
        """The products of the logits' gradient with `w`, and with `x`."""
        if self.spec.vocabulary_first:
            return "rn,nd->rd", "rn,rd->nd"
        return "rn,dn->rd", "rn,rd->dn"

    @property
    def num_tokens(self) -> int:
        """Tokens without padding."""
        return int(np.prod(self.leading, dtype=int))

    def _in_tiles(self, x_R: Array) -> Array:
        return _padded(x_R, self.block_sizes.rows, 0)


def _padded(x: Array, multiple: int, axis: int) -> Array:
    """Return an array whose size along an axis is a multiple of a number."""
    more = -x.shape[axis] % multiple
    if not more:
        return x
    return jnp.pad(x, [(0, more if one == axis else 0) for one in range(x.ndim)])


def _matmul(equation: str, a: Array, b: Array) -> Array:
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)
