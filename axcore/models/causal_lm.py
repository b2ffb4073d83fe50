"""`CausalLM`: a decoder and a head, trained to tell the next token."""

from collections.abc import Mapping

from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, config
from axcore.layers.tokens import TokenInfo, whole_rows
from axcore.models.decoder import Decoder
from axcore.models.head import UntiedHead
from axcore.module import Module, entry


class CausalLM(Module):
    """A causal language model. As the root of a tree it takes its sizes from its own config."""

    @config
    class Config(Module.Config):
        """Describes a `CausalLM`.

        Args:
            vocab_size: Number of tokens; at least the tokenizer's.
            dim: Size of a token's vector.
            decoder: From tokens to hidden vectors.
            head: From hidden vectors to logits and the loss.
        """

        vocab_size: int = REQUIRED
        dim: int = REQUIRED
        decoder: Module.Config = Decoder.Config()
        head: Module.Config = UntiedHead.Config()

    def setup(self, cfg: Config) -> None:
        """Builds decoder and head."""
        self.decoder = cfg.decoder.build(vocab_size=cfg.vocab_size, dim=cfg.dim)
        self.head = cfg.head.build(dim=cfg.dim, vocab_size=cfg.vocab_size)

    def forward(self, batch: Mapping[str, Array]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Adds the cross-entropy of a batch as a loss, and returns its sum and weight.

        Args:
            batch: `tokens`, `targets`, `positions`, `segment_ids` (`[batch, time]` ints) and
                `loss_weights` (`[batch, time]` floats), as `axcore.data` makes them.
        """
        info = TokenInfo(batch["positions"], batch["segment_ids"])
        x = self.decoder(batch["tokens"], info)
        table = self.decoder.embedding.weight
        total, weight = self.head.loss(x, table, batch["targets"], batch["loss_weights"])
        self.add_loss("cross_entropy", total, weight)
        return total, weight

    @entry
    def logits(
        self, tokens: Int[Array, "batch time"], info: TokenInfo | None = None
    ) -> Float[Array, "batch time vocab"]:
        """Returns float32 logits of the token after each."""
        x = self.decoder(tokens, info or whole_rows(tokens))
        return self.head(x, self.decoder.embedding.weight)
