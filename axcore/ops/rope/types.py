"""What a rotary-position call is made of.

Letters: B batch, T time, N heads, H width of a head, F = H / 2 pairs.
"""

from typing import NamedTuple

import attrs
from jax import Array


class RopeInputs(NamedTuple):
    """The arrays of one call: `x [B, T, N, H]`, `cos` and `sin [B, T, F]` of pairs' angles."""

    x: Array
    cos: Array
    sin: Array


@attrs.frozen
class RopeSpec:
    """The static choices of one call: none."""
