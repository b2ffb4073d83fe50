"""`SandwichNorm`: a residual connection with a norm on both sides of its branch."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers import Dropout, RMSNorm
from axcore.module import Module

Hidden = Float[Array, "batch time dim"]


class SandwichNorm(Module):
    """`x + dropout(norm_after(branch(norm_before(x))))`.

    Source: Ding et al. 2021, arXiv:2105.13290 (Sandwich LayerNorm); Gemma Team 2024,
    arXiv:2408.00118, section 2. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["SandwichNorm"]):
        """The config of a `SandwichNorm`.

        Args:
            dim: Size of the last dimension.
            norm: Used before and after the branch, each with weights of its own.
            dropout: Applied to what is added.
        """

        dim: PositiveInt = REQUIRED
        norm: Module.Config = RMSNorm.Config()
        dropout: Dropout.Config = Dropout.Config()

    def setup(self, cfg: Config) -> None:
        """Build the norms and the dropout."""
        self.before = cfg.norm.build(dim=cfg.dim)
        self.after = cfg.norm.build(dim=cfg.dim)
        self.dropout = cfg.dropout.build()

    def forward(self, x: Hidden, branch: Callable[[Hidden], Hidden]) -> Hidden:
        """Return the input with what the branch makes of it added."""
        return x + self.dropout(self.after(branch(self.before(x))))


def in_place_of(old: Any) -> SandwichNorm.Config:
    """Return the config that takes the place of a norm before the branch only."""
    return SandwichNorm.Config(norm=old.norm, dropout=old.dropout)
