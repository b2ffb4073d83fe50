"""Residual connections: a component decides where the norm is."""

from collections.abc import Callable

from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers.dropout import Dropout
from axcore.layers.norm import RMSNorm
from axcore.module import Module

Hidden = Float[Array, "batch time dim"]
Branch = Callable[[Hidden], Hidden]


class Residual(Module):
    """A norm, a dropout, and a branch between them. Slot protocol: the parent fills `dim`.

    A subclass says in which order: `forward(x, branch)`.
    """

    @config
    class Config(Module.Config["Residual"]):
        """Describes a residual connection."""

        dim: PositiveInt = REQUIRED
        norm: Module.Config = RMSNorm.Config()
        dropout: Dropout.Config = Dropout.Config()

    def setup(self, cfg: Config) -> None:
        """Builds the norm and the dropout."""
        self.norm = cfg.norm.build(dim=cfg.dim)
        self.dropout = cfg.dropout.build()


class PreNorm(Residual):
    """`x + dropout(branch(norm(x)))`.

    Source: Xiong et al. 2020, arXiv:2002.04745, figure 1b.
    """

    def forward(self, x: Hidden, branch: Branch) -> Hidden:
        """Returns the input with what the branch makes of it added."""
        return x + self.dropout(branch(self.norm(x)))


class PostNorm(Residual):
    """`norm(x + dropout(branch(x)))`.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1.
    """

    def forward(self, x: Hidden, branch: Branch) -> Hidden:
        """Returns the normalised sum of the input and what the branch makes of it."""
        return self.norm(x + self.dropout(branch(x)))
