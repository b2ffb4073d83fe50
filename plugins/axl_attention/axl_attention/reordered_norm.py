"""`ReorderedNorm`: a residual connection with the norm behind its branch only."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Float

from axcore.layers import Residual

Hidden = Float[Array, "batch time dim"]


class ReorderedNorm(Residual):
    """`x + dropout(norm(branch(x)))`.

    Source: Liu et al. 2021, arXiv:2111.09883, section 3.2 (res-post-norm); OLMo Team 2025,
    arXiv:2501.00656, section 3.1.
    """

    def forward(self, x: Hidden, branch: Callable[[Hidden], Hidden]) -> Hidden:
        """Return the input with what the branch makes of it, normalised, added."""
        return x + self.dropout(self.norm(branch(x)))


def in_place_of(old: Any) -> ReorderedNorm.Config:
    """Return the config that takes the place of a norm before the branch."""
    return ReorderedNorm.Config(norm=old.norm, dropout=old.dropout)
