"""`Decoder`: from tokens to hidden vectors."""

from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers import Dropout, Embedding, RMSNorm, ScannedLayers, TokenInfo, TransformerLayer
from axcore.layers.tokens import TOKEN_MASK
from axcore.module import Module
from axcore.parallel import shard


class Decoder(Module):
    """Embeds tokens, passes them through a stack of layers, and normalises the result.

    Slot protocol: the parent fills `vocab_size` and `dim`.
    """

    @config
    class Config(Module.Config["Decoder"]):
        """Describes a `Decoder`.

        Args:
            vocab_size: Number of tokens.
            dim: Size of a token's vector.
            embedding: The token table.
            stack: The layers, scanned (`ScannedLayers`) or unrolled (`Stack`).
            norm: The norm after the last layer.
            dropout: Applied to the embeddings.
        """

        vocab_size: PositiveInt = REQUIRED
        dim: PositiveInt = REQUIRED
        embedding: Module.Config = Embedding.Config()
        stack: Module.Config = ScannedLayers.Config(layer=TransformerLayer.Config())
        norm: Module.Config = RMSNorm.Config()
        dropout: Dropout.Config = Dropout.Config()

    def setup(self, cfg: Config) -> None:
        """Builds the parts."""
        self.embedding = cfg.embedding.build(vocab_size=cfg.vocab_size, dim=cfg.dim)
        self.dropout = cfg.dropout.build()
        self.stack = cfg.stack.build(dim=cfg.dim)
        self.norm = cfg.norm.build(dim=cfg.dim)

    def forward(
        self, tokens: Int[Array, "batch time"], info: TokenInfo
    ) -> Float[Array, "batch time dim"]:
        """Returns a normalised vector for each token."""
        if info.is_real is not None:
            self.set_shared(TOKEN_MASK, info.is_real)
        x = shard(self.dropout(self.embedding(tokens, info)), "batch", "time", "embed")
        return self.norm(self.stack(x, info))
