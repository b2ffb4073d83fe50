"""Cross-entropy on TPU by Pallas kernels that never write a logit to memory.

Four products of all tokens with the full vocabulary: logits and the gradient of `x` forward,
logits again and the gradient of `w` backward. In addition to those gradients memory holds a few
numbers a token. Without gradients there is one product.

Letters: R tokens, V vocabulary, D width.
"""

from typing import Any, cast

import jax.numpy as jnp
from jax import Array

from axcore.ops import (
    Call,
    CrossEntropySpec,
    CrossEntropyTokens,
    TokenStatistics,
    choose_block_sizes,
)
from axl_tpu.kernels.cross_entropy.backward import projection_gradient
from axl_tpu.kernels.cross_entropy.block_sizes import BLOCK_SIZES, whole
from axl_tpu.kernels.cross_entropy.forward import token_parts

DTYPES = ("bfloat16", "float32")
MAX_WIDTH = {"bfloat16": 8192, "float32": 4096}
"""Widest rows of which blocks of tokens and vocabulary fit VMEM."""


def unsupported_reason(call: Call) -> str | None:
    """Return None where the kernel can serve the call, else the reason why not."""
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
    inputs: CrossEntropyTokens, spec: CrossEntropySpec, *, interpret: Any = False
) -> TokenStatistics:
    """Return what the logits give each token, with the mean if a gradient will be wanted.

    Products take x's dtype and accumulate in float32; all else is float32. A `w` of another dtype
    or layout than `[V, D]` of x's is copied to that once.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: The call's static choices.
        interpret: Runs the kernel by an interpreter, on any device.
    """
    return _Tokens(inputs, spec, interpret).statistics(with_mean=spec.for_gradient)


def tpu_cross_entropy_backward(
    inputs: CrossEntropyTokens,
    spec: CrossEntropySpec,
    *,
    lse_BT: Array,
    target_BT: Array,
    mean_VBTD: Array | None,
    scale_BT: Array,
    interpret: Any = False,
) -> CrossEntropyTokens:
    """Return the gradients of `x` and `w`, float32.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: The call's static choices.
        lse_BT: Log-sum-exp of each token over the full vocabulary.
        target_BT: Its target's logit.
        mean_VBTD: What `tpu_cross_entropy` leaves; computed if a kernel left none.
        scale_BT: Gradient by its loss.
        interpret: Runs the kernels by an interpreter, on any device.
    """
    tokens = _Tokens(inputs, spec, interpret)
    if mean_VBTD is None:
        own = tokens.statistics(with_mean=True)
        assert own.mean_VBTD is not None
        # The mean is by probabilities in this device's part of the vocabulary; by the whole
        # log-sum-exp it becomes those of all.
        share_BT1 = jnp.exp(own.lse_BT - lse_BT)[..., None]
        mean_VBTD = share_BT1[None] * own.mean_VBTD.astype(jnp.float32)
    slope_BT = tokens.hidden_gradient(lse_BT, target_BT, mean_VBTD[0])
    dx_BTD = scale_BT[..., None] * slope_BT
    return CrossEntropyTokens(
        dx_BTD, tokens.projection_gradient(lse_BT, scale_BT), cast(Array, None)
    )


class _Tokens:
    """A call in full blocks."""

    def __init__(self, inputs: CrossEntropyTokens, spec: CrossEntropySpec, interpret: Any) -> None:
        x, w, targets = inputs
        call = Call.of("cross_entropy", {"x": x, "w": w}, {})
        block_sizes = choose_block_sizes(BLOCK_SIZES, call)
        # One layout for both kernels: rows of the vocabulary are gathered for targets, and are
        # the right side of products without a transposed copy of each block.
        rounded = w.astype(x.dtype)
        w_VD = rounded if spec.vocabulary_first else rounded.T
        self.spec, self.interpret, self.leading = spec, interpret, targets.shape
        self.vocabulary_size, self.num_tokens = w_VD.shape[0], targets.size
        self.block_sizes = block_sizes.fitted(self.num_tokens, self.vocabulary_size)
        self.x_RD = self._in_blocks(x.reshape(-1, x.shape[-1]))
        self.w_VD = _padded(w_VD, whole(self.vocabulary_size, self.block_sizes.vocabulary))
        self.targets_BT = targets
        self.targets_R = self._in_blocks(targets.reshape(-1).astype(jnp.int32))

    def statistics(self, *, with_mean: bool) -> TokenStatistics:
        """Return each token's statistics, in the leading dimensions' shape."""
        parts = token_parts(
            self.x_RD,
            self.w_VD,
            self.targets_R,
            self.spec,
            self.block_sizes,
            vocabulary_size=self.vocabulary_size,
            with_mean=with_mean,
            interpret=self.interpret,
        )
        numbers = (parts.maximum_R, parts.lse_R, parts.target_R)
        maximum, lse, target = (self._as_given(one) for one in numbers)
        mean = None if parts.mean_RD is None else self._as_given(parts.mean_RD)[None]
        return TokenStatistics(maximum, lse, target, mean)

    def hidden_gradient(self, lse_BT: Array, target_BT: Array, mean_BTD: Array) -> Array:
        """Return what this vocabulary adds to the gradient of tokens by their losses, float32."""
        factor_BT = 1.0 + 2.0 * self.spec.z_loss * lse_BT
        slope_BT: Array | float = 1.0
        if self.spec.soft_cap is not None:
            slope_BT = 1.0 - jnp.square(target_BT / self.spec.soft_cap)
        own_BT = slope_BT * (factor_BT * jnp.exp(target_BT - lse_BT) - 1.0)
        # -1 marks a target in another device's part, which adds it.
        own_BT = jnp.where(self.targets_BT >= 0, own_BT, 0.0)
        # The target's row by itself, in float32: p - 1 is small for a token that is predicted
        # well, and as part of the rounded mean it would be lost.
        rows_BTD = jnp.take(self.w_VD, self.targets_BT, axis=0, mode="clip").astype(jnp.float32)
        others_BTD = factor_BT[..., None] * mean_BTD.astype(jnp.float32)
        return others_BTD + own_BT[..., None] * rows_BTD

    def projection_gradient(self, lse_BT: Array, scale_BT: Array) -> Array:
        """Return the gradient of the vocabulary, float32."""
        return projection_gradient(
            self.x_RD,
            self.w_VD,
            self.targets_R,
            self._in_blocks(lse_BT.reshape(-1)),
            self._in_blocks(scale_BT.reshape(-1)),
            self.spec,
            self.block_sizes,
            vocabulary_size=self.vocabulary_size,
            dtype=jnp.float32,
            interpret=self.interpret,
        )

    def _in_blocks(self, x_R: Array) -> Array:
        return _padded(x_R, whole(self.num_tokens, self.block_sizes.rows))

    def _as_given(self, x_R: Array) -> Array:
        return x_R[: self.num_tokens].reshape(*self.leading, *x_R.shape[1:])


def _padded(x: Array, size: int) -> Array:
    if x.shape[0] == size:
        return x
    return jnp.pad(x, ((0, size - x.shape[0]), *[(0, 0)] * (x.ndim - 1)))
