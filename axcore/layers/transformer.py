"""`TransformerLayer`: attention and a feed-forward, each in a residual connection."""

from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers.attention.self_attention import Attention
from axcore.layers.feed_forward import FeedForward
from axcore.layers.residual import PreNorm
from axcore.layers.tokens import TokenInfo
from axcore.module import Module
from axcore.parallel import shard


class TransformerLayer(Module):
    """Attention across tokens, then a feed-forward on each.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1. Slot protocol: the parent fills
    `dim`.
    """

    @config
    class Config(Module.Config["TransformerLayer"]):
        """Describes a `TransformerLayer`.

        Args:
            dim: Size of the last dimension of input and output.
            attention: Mixes tokens; called with the token info.
            feed_forward: Works on each token.
            residual: Wraps each of the two, and decides where the norm is.
        """

        dim: PositiveInt = REQUIRED
        attention: Module.Config = Attention.Config()
        feed_forward: Module.Config = FeedForward.Config()
        residual: Module.Config = PreNorm.Config()

    def setup(self, cfg: Config) -> None:
        """Builds the two branches and their residual connections."""
        self.attention = cfg.attention.build(dim=cfg.dim)
        self.feed_forward = cfg.feed_forward.build(dim=cfg.dim)
        self.attention_residual = cfg.residual.build(dim=cfg.dim)
        self.feed_forward_residual = cfg.residual.build(dim=cfg.dim)

    def forward(
        self, x: Float[Array, "batch time dim"], info: TokenInfo
    ) -> Float[Array, "batch time dim"]:
        """Returns the tokens after both branches."""
        x = self.attention_residual(x, lambda normed: self.attention(normed, info))
        x = self.feed_forward_residual(x, self.feed_forward)
        return shard(x, "batch", "time", "embed")
