# ruff: noqa: N815 - fields carry shape letters
"""What a cross-entropy call is made of, and what it returns.

Letters: B all leading dimensions but the last, T time, D width, V vocabulary.
"""

from typing import NamedTuple

import attrs
from jax import Array


class CrossEntropyInputs(NamedTuple):
    """The arrays of one call; `w` is `[D, V]`, or `[V, D]` where the spec says so.

    Where `w` is float32 and `x` is not, products take `w` in x's dtype.
    """

    x_BTD: Array
    w: Array
    targets_BT: Array
    weights_BT: Array


class CrossEntropyTokens(NamedTuple):
    """What kernels get of a call whose gradient is the op's: all arrays but the weights.

    Of a vocabulary that is split over devices, `w` is the device's part, and targets count from its
    first entry. A target that is not in it is -1.
    """

    x_BTD: Array
    w: Array
    targets_BT: Array


class TokenStatistics(NamedTuple):
    """What the logits of a vocabulary, or of a device's part of it, give each token; float32.

    `target_BT` is 0 where the target is -1. `mean_VBTD`, with V of size 1, is what a kernel may
    leave for its backward part: the mean of the other entries' rows of `w` by their probability,
    times the soft cap's slope, in x's dtype.
    """

    maximum_BT: Array
    lse_BT: Array
    target_BT: Array
    mean_VBTD: Array | None = None


@attrs.frozen(kw_only=True)
class CrossEntropySpec:
    """The static choices of one call; hashable.

    `for_gradient` is true where a backward kernel will follow a forward one; `sums_are_partial`
    where what a backward kernel adds to the gradient of `w` is still to be summed over devices, and
    so is wanted in float32. Kernels are not chosen by these two.
    """

    vocabulary_first: bool = False
    z_loss: float = 0.0
    soft_cap: float | None = None
    for_gradient: bool = False
    sums_are_partial: bool = False


class CrossEntropySums(NamedTuple):
    """Float32 scalars: sums over all tokens, each token times its weight.

    Only `loss` carries gradients to `x` and `w`; the others are for reports.
    """

    loss: Array
    """Negative log-likelihood plus z-loss."""
    weight: Array
    """The weights themselves, which the loss is divided by in the end."""
    z_loss: Array
    """The part of `loss` that is z-loss."""
    correct: Array
    """Tokens whose target has the largest logit."""
