"""The cross-entropy op: output projection and softmax cross-entropy in one.

Letters: B all leading dimensions but the last, T time, D width, V vocabulary.
"""

import math
from typing import Any, cast

import attrs
import jax.numpy as jnp
from jax import Array

from axcore.errors import KernelError
from axcore.ops.cross_entropy.sharding import cross_entropy_sharding, sums_sharding
from axcore.ops.cross_entropy.token_sharding import split_over_tokens
from axcore.ops.cross_entropy.types import (
    CrossEntropyInputs,
    CrossEntropySpec,
    CrossEntropySums,
    CrossEntropyTokens,
    TokenStatistics,
)
from axcore.ops.cross_entropy.vjp import cross_entropy_custom_vjp
from axcore.ops.dispatch.call import Call
from axcore.ops.dispatch.kernel_op import KernelOp
from axcore.ops.dispatch.kernel_result import ResultSpec


def _results(inputs: CrossEntropyTokens, spec: CrossEntropySpec) -> TokenStatistics:
    x_BTD, _, targets_BT = inputs
    numbers = [ResultSpec(name, targets_BT.shape, "float32") for name in TokenStatistics._fields]
    mean = ResultSpec("mean_VBTD", (1, *x_BTD.shape), x_BTD.dtype.name, is_optional=True)
    return TokenStatistics(*cast(Any, (*numbers[:3], mean)))


def _sums(inputs: CrossEntropyInputs, spec: CrossEntropySpec) -> CrossEntropySums:
    sums = [ResultSpec(name, (), "float32") for name in CrossEntropySums._fields]
    return CrossEntropySums(*cast(Any, sums))


CROSS_ENTROPY_OP = KernelOp(
    name="cross_entropy",
    sharding=cross_entropy_sharding,
    differentiable_sharding=sums_sharding,
    results=_results,
    differentiable_results=_sums,
    custom_vjp=cross_entropy_custom_vjp,
)


def cross_entropy(
    x_BTD: Array,
    w: Array,
    targets_BT: Array,
    weights_BT: Array,
    *,
    vocabulary_first: bool = False,
    z_loss: float = 0.0,
    soft_cap: float | None = None,
) -> tuple[Array, Array]:
    """Return `(loss_sum, weight_sum)`, float32 scalars; the loss is their quotient, in nats.

    `logits = cap(x w)`; each token adds `weight * (lse(logits) - logits[target] + z_loss * lse^2)`.
    Logits are computed and reduced in float32; an infinite one that matters makes the loss NaN or
    infinite, never a plausible number.

    Args:
        x_BTD: Hidden states; any number of leading dimensions, at least one.
        w: Output projection `[D, V]` of x's dtype; or of float32, to be rounded to x's dtype and to
            have its gradient in float32.
        targets_BT: Integers in [0, V). One outside of it makes a loss without meaning, so give such
            tokens a target of 0 and a weight of 0.
        weights_BT: Floating weight of each token; 0 leaves it out.
        vocabulary_first: `w` is `[V, D]`: an embedding table shared with the input.
        z_loss: Coefficient of the squared log-sum-exp.
        soft_cap: `cap(x) = soft_cap * tanh(x / soft_cap)`.

    Raises:
        KernelError: Shapes, dtypes or numbers do not fit, or no kernel can serve the call.
    """
    sums = cross_entropy_sums(
        x_BTD,
        w,
        targets_BT,
        weights_BT,
        vocabulary_first=vocabulary_first,
        z_loss=z_loss,
        soft_cap=soft_cap,
    )
    return sums.loss, sums.weight


def cross_entropy_sums(
    x_BTD: Array,
    w: Array,
    targets_BT: Array,
    weights_BT: Array,
    *,
    vocabulary_first: bool = False,
    z_loss: float = 0.0,
    soft_cap: float | None = None,
) -> CrossEntropySums:
    """Return the loss and weight sums with the z-loss and the count of correct tokens beside them.

    Arguments and errors are those of `cross_entropy`.
    """
    inputs = CrossEntropyInputs(x_BTD, w, targets_BT, weights_BT)
    spec = CrossEntropySpec(
        vocabulary_first=vocabulary_first, z_loss=float(z_loss), soft_cap=soft_cap
    )
    _check(inputs, spec)

    def sums_of(*arrays: Array) -> CrossEntropySums:
        own = CrossEntropyInputs(*arrays)
        sums: CrossEntropySums = CROSS_ENTROPY_OP.run(cross_entropy_call(own, spec), own, spec)
        return sums

    return split_over_tokens(sums_of, inputs, width_axis=1 if vocabulary_first else 0)


_STAGE = ("for_gradient", "sums_are_partial")
"""Fields of the spec that say which part of a call a kernel computes, not which call it is."""


def cross_entropy_call(inputs: CrossEntropyInputs, spec: CrossEntropySpec) -> Call:
    """Return the call that kernels are asked about."""
    arrays = {
        "x": inputs.x_BTD,
        "w": inputs.w,
        "targets": inputs.targets_BT,
        "weights": inputs.weights_BT,
    }
    features = attrs.asdict(spec, filter=lambda field, _: field.name not in _STAGE)
    return Call.of(CROSS_ENTROPY_OP.name, arrays, features)


def _check(inputs: CrossEntropyInputs, spec: CrossEntropySpec) -> None:
    x, w, targets, weights = inputs
    if x.ndim < 2 or w.ndim != 2:
        raise KernelError(
            f"cross_entropy: x has shape {x.shape} and w {w.shape}; expected [..., T, D] and "
            f"{'[V, D]' if spec.vocabulary_first else '[D, V]'}."
        )
    if x.shape[-1] != w.shape[1 if spec.vocabulary_first else 0]:
        raise KernelError(
            f"cross_entropy: x has width {x.shape[-1]} and w has shape {w.shape}, read as "
            f"{'[V, D]' if spec.vocabulary_first else '[D, V]'}.",
            hint="pass vocabulary_first=True for [V, D] and False for [D, V]",
        )
    if targets.shape != x.shape[:-1] or weights.shape != x.shape[:-1]:
        raise KernelError(
            f"cross_entropy: targets have shape {targets.shape} and weights {weights.shape}; "
            f"expected {x.shape[:-1]}, x without its last dimension."
        )
    if not (w.dtype in (x.dtype, jnp.float32) and jnp.issubdtype(x.dtype, jnp.floating)):
        raise KernelError(
            f"cross_entropy: dtypes are x {x.dtype} and w {w.dtype}; expected one floating dtype, "
            "or float32 for w.",
            hint="cast both to the compute dtype before the call",
        )
    if not jnp.issubdtype(targets.dtype, jnp.integer):
        raise KernelError(f"cross_entropy: targets are {targets.dtype}; expected integers.")
    if not jnp.issubdtype(weights.dtype, jnp.floating):
        raise KernelError(f"cross_entropy: weights are {weights.dtype}; expected floating.")
    if not (math.isfinite(spec.z_loss) and spec.z_loss >= 0):
        raise KernelError(f"cross_entropy: z_loss is {spec.z_loss}; expected a number >= 0.")
    if spec.soft_cap is not None and not (math.isfinite(spec.soft_cap) and spec.soft_cap > 0):
        raise KernelError(
            f"cross_entropy: soft_cap is {spec.soft_cap}; expected a positive number."
        )
