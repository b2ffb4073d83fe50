# ruff: noqa: N815 - fields carry shape letters
"""What a decode-matmul call is made of.

Letters: R rows, K input, N output; G groups of K that share a scale in each column; P panels of C
columns.
"""

from typing import NamedTuple

import attrs
from jax import Array

INT4_PAIRS = "uint8"
"""Dtype of weights in int4: two numbers share a byte."""


class DecodeMatmulInputs(NamedTuple):
    """The arrays of one call, a pytree.

    The weight is `[K, N]`, `[N, K]` where it is transposed, or `[P, K, C]` in panels. One that is
    kept narrow has a scale; in int4 it is `[K / 2, N]`: row `k` of it has the low halves of bytes,
    row `k + K / 2` the high ones.
    """

    x_RK: Array
    weight: Array
    scale_GN: Array | None = None


@attrs.frozen(kw_only=True)
class DecodeMatmulSpec:
    """The static choices of one call; hashable. `out_dim` is N of a weight in panels."""

    transposed: bool = False
    out_dim: int | None = None
