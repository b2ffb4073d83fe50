"""`ScaledResidual`: a residual connection whose branch is multiplied by a number."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import config
from axcore.layers import Residual

Hidden = Float[Array, "batch time dim"]


class ScaledResidual(Residual):
    """`x + scale * dropout(branch(norm(x)))`.

    Source: Yang et al. 2023, arXiv:2310.02244, section 1 (depth-muP); IBM 2024, "Granite 3.0
    Language Models", section 3.
    """

    @config
    class Config(Residual.Config):
        """The config of a `ScaledResidual`.

        Args:
            scale: Factor on what is added.
        """

        scale: float = 1.0

    def forward(self, x: Hidden, branch: Callable[[Hidden], Hidden]) -> Hidden:
        """Return the input with what the branch makes of it, scaled, added."""
        return x + self.dropout(branch(self.norm(x))) * jnp.asarray(self.config.scale, x.dtype)


def in_place_of(old: Any) -> ScaledResidual.Config:
    """Return the config that takes the place of a residual connection with a norm before."""
    return ScaledResidual.Config(norm=old.norm, dropout=old.dropout)
