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


@attrs.frozen(kw_only=True)
class CrossEntropySpec:
    """The static choices of one call; hashable."""

    vocabulary_first: bool = False
    z_loss: float = 0.0
    soft_cap: float | None = None


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
