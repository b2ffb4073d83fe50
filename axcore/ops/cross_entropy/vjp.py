"""The loss of cross-entropy and its gradients from two kernels: any forward with any backward one.

What forward leaves for backward is fixed: a few numbers a token, and one row of each if it likes.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import attrs
import jax
import jax.numpy as jnp
from jax import Array, lax

from axcore.ops.cross_entropy.sharding import cross_entropy_sharding
from axcore.ops.cross_entropy.types import (
    CrossEntropyInputs,
    CrossEntropySpec,
    CrossEntropySums,
    CrossEntropyTokens,
    TokenStatistics,
)
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
        """Return the gradients, given the whole vocabulary's statistics and those of the losses."""
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
            scale_BT=gradients[0],
        )
        return (new,)

    run.defvjp(run_forward, run_backward)
    weights_BT = inputs.weights_BT.astype(jnp.float32)
    tokens = CrossEntropyTokens(inputs.x_BTD, inputs.w, inputs.targets_BT)
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
