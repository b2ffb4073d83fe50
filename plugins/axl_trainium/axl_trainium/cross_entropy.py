"""The cross-entropy op by NKI kernels: output projection and loss, forward and backward.

No logit is ever written to HBM. What is kept for backward is one number a token. Under a mesh each
device works on its own tokens and, where the vocabulary is split, its own words.

Letters: B all leading dimensions but the last, T time, D width, V vocabulary; N tokens.
"""

from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from axcore.ops import Call, CrossEntropyInputs, CrossEntropySpec, CrossEntropySums
from axcore.parallel import CrossEntropySplit
from axl_trainium.cross_entropy_part import Part
from axl_trainium.cross_entropy_tiles import tiles_for
from axl_trainium.limits import why_not_dtype

LAST_TARGET = 2**24
"""Targets up to here are exact in float32."""


def accepts(call: Call) -> str | None:
    """Returns None where the kernels can serve the call, else the reason why not."""
    x, w = call.shape("x"), call.shape("w")
    if 0 in (*x, *w):
        return f"takes one token, column and word or more, not x {x} and w {w}"
    vocabulary = w[0 if call.feature("vocabulary_first") else 1]
    if vocabulary > LAST_TARGET:
        return f"takes vocabularies up to {LAST_TARGET}, not {vocabulary}"
    reason = why_not_dtype(call.dtype("x"))
    if reason is None and tiles_for(x[-1], call.dtype("x")) is None:
        return f"takes widths whose gradients fit SBUF, not {x[-1]} in {call.dtype('x')}"
    return reason


def nki_cross_entropy(inputs: CrossEntropyInputs, spec: CrossEntropySpec) -> CrossEntropySums:
    """Returns the sums; see `axcore.ops.cross_entropy_sums`.

    Products take x's dtype and accumulate in float32; all else is float32. Cost: the products of
    the projection once forward and twice more backward, beside those of the two gradients; the
    projection is turned in HBM once.
    """
    split = CrossEntropySplit.of(inputs, vocabulary_first=spec.vocabulary_first)
    tokens = _tokens(_How(spec, split), inputs)
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
    split: CrossEntropySplit

    def part(self, x: Array, w: Array, targets: Array) -> Part:
        """Returns what a device has of the arrays."""
        return Part(x, w, targets, spec=self.spec, split=self.split)

    def in_specs(self) -> tuple[Any, Any, Any]:
        """Returns how tokens, projection and targets are split."""
        by_word = self.split.by_word(vocabulary_first=self.spec.vocabulary_first)
        return self.split.by_token(None), by_word, self.split.by_token()


_Outputs = tuple[Array, Array, Array]
_Residuals = tuple[CrossEntropyInputs, Array]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _tokens(how: _How, inputs: CrossEntropyInputs) -> _Outputs:
    """Returns each token's loss and z-loss, and whether it is correct, before its weight."""
    return _forward(how, inputs)[0]


def _forward(how: _How, inputs: CrossEntropyInputs) -> tuple[_Outputs, _Residuals]:
    def own(x: Array, w: Array, targets: Array) -> _Outputs:
        return how.part(x, w, targets).statistics()

    run = how.split.in_parts(own, how.in_specs(), (how.split.by_token(),) * 3)
    lse_BT, target_BT, largest_BT = run(*inputs[:3])
    z_loss_BT = how.spec.z_loss * jnp.square(lse_BT)
    correct_BT = (target_BT >= largest_BT).astype(jnp.float32)
    return (lse_BT - target_BT + z_loss_BT, z_loss_BT, correct_BT), (inputs, lse_BT)


def _backward(how: _How, residuals: _Residuals, gradients: _Outputs) -> tuple[CrossEntropyInputs]:
    inputs, lse_BT = residuals

    def own(x: Array, w: Array, targets: Array, lse: Array, scale: Array) -> tuple[Array, Array]:
        factor = scale * (1.0 + 2.0 * how.spec.z_loss * lse)
        token_N3 = jnp.stack([-lse, factor, -scale], axis=-1).reshape(-1, 3)
        part = how.part(x, w, targets)
        dw_DV = part.projection_gradient(token_N3)
        dw = dw_DV.T if how.spec.vocabulary_first else dw_DV
        return part.hidden_gradient(token_N3), dw.astype(w.dtype)

    token = how.split.by_token()
    in_specs = how.in_specs()
    run = how.split.in_parts(own, (*in_specs, token, token), in_specs[:2])
    dx_BTD, dw = run(*inputs[:3], lse_BT, gradients[0])
    none = np.zeros(inputs.targets_BT.shape, jax.dtypes.float0)
    weights_BT = jnp.zeros_like(inputs.weights_BT)  # they multiply outside, and get theirs there
    return (CrossEntropyInputs(dx_BTD, dw, cast(Array, none), weights_BT),)


_tokens.defvjp(_forward, _backward)
