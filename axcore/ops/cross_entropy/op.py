"""The cross-entropy op: output projection and softmax cross-entropy in one.

The loss and its gradients come from two kernels, any forward with any backward one. What forward
leaves for backward is fixed: a few numbers a token, and one row of each if it likes.

Letters: B all leading dimensions but the last, T time, D width, V vocabulary.
"""

import math
from collections.abc import Callable
from typing import Any, Protocol, cast, runtime_checkable

import attrs
import jax
import jax.numpy as jnp
from jax import Array, lax

from axcore.errors import KernelError
from axcore.ops.cross_entropy.sharding import (
    CrossEntropyInputs,
    CrossEntropySpec,
    CrossEntropySums,
    CrossEntropyTokens,
    TokenStatistics,
    cross_entropy_sharding,
    split_over_tokens,
    sums_sharding,
)
from axcore.ops.op import KernelOp, ResultSpec
from axcore.parallel.shard_op import Partition

Forward = Callable[[CrossEntropyTokens, CrossEntropySpec], TokenStatistics]


@runtime_checkable
class Backward(Protocol):
    """A backward kernel: gradients of `x`, float32, and of `w`, and None for the targets.

    Of a part of the vocabulary, or of the tokens, it returns what that part adds. The gradient of
    `w` may be of w's dtype unless the spec says that sums are partial; it is float32 then.
    """

    def __call__(
        self,
        inputs: CrossEntropyTokens,
        spec: CrossEntropySpec,
        *,
        lse_BT: Array,
        target_BT: Array,
        mean_VBTD: Array | None,
        scale_BT: Array,
    ) -> CrossEntropyTokens:
        """Return the gradients, given the full vocabulary's statistics and those of the losses."""
        ...


_Losses = tuple[Array, Array, Array]
_Residuals = tuple[CrossEntropyTokens, TokenStatistics]


def cross_entropy_custom_vjp(
    inputs: CrossEntropyInputs, spec: CrossEntropySpec, *, forward: Forward, backward: Backward
) -> CrossEntropySums:
    """Return the sums from `forward`'s statistics, with the gradient that `backward` computes."""

    @jax.custom_vjp
    def run(tokens: CrossEntropyTokens) -> _Losses:
        return _losses(forward(tokens, spec), spec)

    def run_forward(tokens: CrossEntropyTokens) -> tuple[_Losses, _Residuals]:
        # `for_gradient` asks the kernel for the mean too, which takes a second product over the
        # vocabulary.
        statistics = forward(tokens, attrs.evolve(spec, for_gradient=True))
        return _losses(statistics, spec), (tokens, statistics)

    def run_backward(residuals: _Residuals, gradients: _Losses) -> tuple[CrossEntropyTokens]:
        tokens, (_, lse_BT, target_BT, mean_VBTD) = residuals
        new = backward(
            tokens,
            attrs.evolve(spec, sums_are_partial=_tokens_are_split(tokens, spec)),
            lse_BT=lse_BT,
            target_BT=target_BT,
            mean_VBTD=mean_VBTD,
            # Of the loss alone: the z-loss is a part of it, and is given for reports, as are
            # correct tokens.
            scale_BT=gradients[0],
        )
        return (new,)

    run.defvjp(run_forward, run_backward)
    weights_BT = inputs.weights_BT.astype(jnp.float32)
    tokens = CrossEntropyTokens(inputs.x_BTD, inputs.w, inputs.targets_BT)
    # Outside of the rule, so that JAX makes the gradient of weights, and kernels see one number a
    # token.
    loss, z_loss, correct = (jnp.sum(weights_BT * one_BT) for one_BT in run(tokens))
    return CrossEntropySums(
        loss=loss,
        weight=jnp.sum(weights_BT),
        z_loss=lax.stop_gradient(z_loss),
        correct=lax.stop_gradient(correct),
    )


def _tokens_are_split(tokens: CrossEntropyTokens, spec: CrossEntropySpec) -> bool:
    sharding = cross_entropy_sharding(tokens, spec)
    partition = Partition.of(sharding.split, tokens, sharding.inputs)
    return bool(partition.axes["batch"] or partition.axes["time"])


def _losses(statistics: TokenStatistics, spec: CrossEntropySpec) -> _Losses:
    """Return loss, z-loss, and whether it is correct, of each token, before its weight."""
    maximum_BT, lse_BT, target_BT, _ = statistics
    z_loss_BT = spec.z_loss * jnp.square(lse_BT)
    correct_BT = (target_BT >= maximum_BT).astype(jnp.float32)
    return lse_BT - target_BT + z_loss_BT, z_loss_BT, correct_BT


def _results(inputs: CrossEntropyTokens, spec: CrossEntropySpec) -> TokenStatistics:
    x_BTD, _, targets_BT = inputs
    numbers = [ResultSpec(name, targets_BT.shape, "float32") for name in TokenStatistics._fields]
    mean = ResultSpec("mean_VBTD", (1, *x_BTD.shape), x_BTD.dtype.name, is_optional=True)
    return TokenStatistics(*cast(Any, (*numbers[:3], mean)))


def _sums(inputs: CrossEntropyInputs, spec: CrossEntropySpec) -> CrossEntropySums:
    sums = [ResultSpec(name, (), "float32") for name in CrossEntropySums._fields]
    return CrossEntropySums(*cast(Any, sums))


CROSS_ENTROPY_OP = KernelOp[CrossEntropySums](
    name="cross_entropy",
    inputs=CrossEntropyInputs,
    spec=CrossEntropySpec,
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
    """Return the loss and weight sums with the z-loss and the count of correct tokens next to them.

    Arguments and errors are those of `cross_entropy`.
    """
    inputs = CrossEntropyInputs(x_BTD, w, targets_BT, weights_BT)
    spec = CrossEntropySpec(
        vocabulary_first=vocabulary_first, z_loss=float(z_loss), soft_cap=soft_cap
    )
    _check(inputs, spec)

    def sums_of(*arrays: Array) -> CrossEntropySums:
        own = CrossEntropyInputs(*arrays)
        return CROSS_ENTROPY_OP.run(own, spec)

    return split_over_tokens(sums_of, inputs, width_axis=1 if vocabulary_first else 0)


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
