"""`ParallelLayer`: attention and a feed-forward side by side."""

from typing import Any

from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers import Attention, Dropout, FeedForward, RMSNorm, TokenInfo, shard
from axcore.module import Module


class ParallelLayer(Module):
    """`x + attention(norm(x)) + feed_forward(norm(x))`, with two norms.

    Source: Black et al. 2022, arXiv:2204.06745, section 2.1. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["ParallelLayer"]):
        """The config of a `ParallelLayer`.

        Args:
            dim: Size of the last dimension of input and output.
            attention: Mixes tokens; called with the token info.
            feed_forward: Works on each token.
            norm: Used before each of the two, with weights of its own.
            dropout: Applied to what each of the two adds.
        """

        dim: PositiveInt = REQUIRED
        attention: Module.Config = Attention.Config()
        feed_forward: Module.Config = FeedForward.Config()
        norm: Module.Config = RMSNorm.Config()
        dropout: Dropout.Config = Dropout.Config()

    def setup(self, cfg: Config) -> None:
        """Build the two branches and their norms."""
        self.attention_norm = cfg.norm.build(dim=cfg.dim)
        self.attention = cfg.attention.build(dim=cfg.dim)
        self.feed_forward_norm = cfg.norm.build(dim=cfg.dim)
        self.feed_forward = cfg.feed_forward.build(dim=cfg.dim)
        self.attention_dropout = cfg.dropout.build()
        self.feed_forward_dropout = cfg.dropout.build()

    def forward(
        self, x: Float[Array, "batch time dim"], info: TokenInfo
    ) -> Float[Array, "batch time dim"]:
        """Return the tokens with what both branches make of them added."""
        mixed = self.attention_dropout(self.attention(self.attention_norm(x), info))
        fed = self.feed_forward_dropout(self.feed_forward(self.feed_forward_norm(x)))
        return shard(x + mixed + fed, "batch", "time", "embed")


def in_place_of(old: Any) -> ParallelLayer.Config:
    """Return the config that takes the place of a layer of two branches in turn."""
    return ParallelLayer.Config(
        attention=old.attention,
        feed_forward=old.feed_forward,
        norm=old.residual.norm,
        dropout=old.residual.dropout,
    )
