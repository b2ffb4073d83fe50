"""What an RMS normalisation call is made of.

Letters: D width; any leading dimensions.
"""

from typing import NamedTuple

import attrs
from jax import Array


class RmsNormInputs(NamedTuple):
    """The arrays of one call: `x [..., D]`, and `scale [D]` if there is one."""

    x: Array
    scale: Array | None


@attrs.frozen(kw_only=True)
class RmsNormSpec:
    """The static choices of one call; hashable."""

    epsilon: float
    scale_offset: float = 0.0
