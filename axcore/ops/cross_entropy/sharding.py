"""The logical axes of a cross-entropy call's arrays: tokens, and the vocabulary.

Where the vocabulary is split, each device works on its own part of it, and devices exchange a few
numbers a token.
"""

from typing import Any

import jax.numpy as jnp

from axcore.ops.cross_entropy.types import (
    CrossEntropyInputs,
    CrossEntropySpec,
    CrossEntropySums,
    CrossEntropyTokens,
    TokenStatistics,
)
from axcore.parallel.shard_op import OpSharding, Partition, axes


def cross_entropy_sharding(inputs: CrossEntropyTokens, spec: CrossEntropySpec) -> OpSharding:
    """Return how the calls of forward and of backward kernels are split."""
    tokens = _tokens(inputs.targets_BT.ndim)
    w = axes("vocab", None) if spec.vocabulary_first else axes(None, "vocab")
    return OpSharding(
        inputs=CrossEntropyTokens(axes(*tokens, None), w, tokens),
        outputs=TokenStatistics(tokens, tokens, tokens, axes("vocab", *tokens, None)),
        backward={
            "lse_BT": tokens,
            "target_BT": tokens,
            "mean_VBTD": axes("vocab", *tokens, None),
            "scale_BT": tokens,
        },
        split=("batch", "time", "vocab"),
        localize=lambda partition, own: _own_targets(partition, own, spec),
        combine=_over_all_words,
    )


def sums_sharding(inputs: CrossEntropyInputs, spec: CrossEntropySpec) -> OpSharding:
    """Return how the calls of differentiable kernels are split: by tokens only."""
    tokens = _tokens(inputs.targets_BT.ndim)
    return OpSharding(
        inputs=CrossEntropyInputs(axes(*tokens, None), axes(None, None), tokens, tokens),
        outputs=CrossEntropySums(*[axes()] * 4),
        split=("batch", "time"),
        combine=lambda partition, _, sums: partition.summed(sums, "batch", "time"),
    )


def _tokens(num_axes: int) -> Any:
    return axes(*("batch", "time")[:num_axes], *(None,) * (num_axes - 2))


def _own_targets(
    partition: Partition, own: CrossEntropyTokens, spec: CrossEntropySpec
) -> CrossEntropyTokens:
    size = own.w.shape[0 if spec.vocabulary_first else 1]
    targets_BT = own.targets_BT.astype(jnp.int32) - partition.index("vocab") * size
    is_own_BT = (targets_BT >= 0) & (targets_BT < size)
    return own._replace(targets_BT=jnp.where(is_own_BT, targets_BT, -1))


def _over_all_words(
    partition: Partition, tokens: CrossEntropyTokens, own: TokenStatistics
) -> TokenStatistics:
    """Return the statistics of the whole vocabulary; of the mean, the part that each adds."""
    if not partition.axes["vocab"]:
        return own
    highest_BT = partition.largest(own.lse_BT, "vocab")
    share_BT = jnp.exp(own.lse_BT - highest_BT)
    lse_BT = highest_BT + jnp.log(partition.summed(share_BT, "vocab"))
    mean_VBTD = own.mean_VBTD
    if mean_VBTD is not None:
        factor_BT = jnp.exp(own.lse_BT - lse_BT)
        mean = factor_BT[None, ..., None] * mean_VBTD.astype(jnp.float32)
        mean_VBTD = mean.astype(mean_VBTD.dtype)
    return TokenStatistics(
        maximum_BT=partition.largest(own.maximum_BT, "vocab"),
        lse_BT=lse_BT,
        target_BT=partition.summed(own.target_BT, "vocab"),
        mean_VBTD=mean_VBTD,
    )
