"""`TextClassifier`: an encoder of text, and logits of the class of each row."""

from jaxtyping import Array, Bool, Float, Int

from axcore.config import REQUIRED, PositiveInt, config
from axcore.interop.family import CheckpointInfo
from axcore.layers import TOKEN_TYPES, Dropout, FirstToken, Linear, whole_rows
from axcore.models.causal_lm import Decoder, flops_per_token
from axcore.models.masked_lm import TokenTransform
from axcore.module import BatchSpec, ModelFlops, Module

Tokens = Int[Array, "batch time"]


class TextClassifier(Module):
    """An encoder, one vector of its tokens, and logits; trained by `axcore.tasks.Classification`.

    As the root of a tree it takes its sizes from its own config. It may begin with the encoder of
    a `MaskedLM`: `HuggingFace.Config(path=..., edits=(EncoderAlone(),))`.

    Source: Devlin et al. 2018, arXiv:1810.04805, section 4.1.
    """

    @config
    class Config(Module.Config["TextClassifier"]):
        """Describes a `TextClassifier`.

        Args:
            num_classes: Number of logits.
            vocab_size: Number of tokens; at least the tokenizer's.
            dim: Size of a token's vector.
            encoder: From tokens to hidden vectors; its layers are not causal.
            pool: From these to one vector.
            transform: From that to what the head projects.
            dropout: Applied before the head.
            head: From there to logits.
            published: The pretrained checkpoint that this model was read from.
        """

        num_classes: PositiveInt = REQUIRED
        vocab_size: PositiveInt = REQUIRED
        dim: PositiveInt = REQUIRED
        encoder: Module.Config = Decoder.Config()
        pool: Module.Config = FirstToken.Config()
        transform: Module.Config = TokenTransform.Config()
        dropout: Dropout.Config = Dropout.Config()
        head: Module.Config = Linear.Config(has_bias=True)
        published: CheckpointInfo | None = None

    def setup(self, cfg: Config) -> None:
        """Build the parts."""
        self.encoder = cfg.encoder.build(vocab_size=cfg.vocab_size, dim=cfg.dim)
        self.pool = cfg.pool.build(dim=cfg.dim)
        self.transform = cfg.transform.build(dim=cfg.dim)
        self.dropout = cfg.dropout.build()
        self.head = cfg.head.build(in_dim=cfg.dim, out_dim=cfg.num_classes, axes=("embed", None))

    def forward(
        self,
        tokens: Tokens,
        is_real: Bool[Array, "batch time"] | None = None,
        token_types: Tokens | None = None,
    ) -> Float[Array, "batch classes"]:
        """Return the logits of each row's classes.

        Args:
            tokens: Of the rows.
            is_real: Which of them are not padding; None where all are.
            token_types: The type of each; 0 where None.
        """
        with self.with_shared(TOKEN_TYPES, token_types):
            x = self.encoder(tokens, whole_rows(tokens, is_real))
        pooled = self.pool(x, is_real)
        # As a row of one token, which a transform of tokens takes.
        x = self.transform(pooled[:, None])[:, 0]
        logits: Array = self.head(self.dropout(x))
        return logits

    def flops_per_unit(self, batch: BatchSpec) -> ModelFlops | None:
        """Return the model FLOPs of a row, forward and backward."""
        # The tokens are the one array of integers with more than one of them a row.
        lengths = [
            one.shape[1]
            for one in batch.arrays.values()
            if len(one.shape) == 2 and one.dtype == "int32"
        ]
        if not lengths:
            return None
        # A token sees all others; `flops_per_token` counts half of them, as of causal attention.
        per_token = flops_per_token(self, 2 * lengths[0])
        return ModelFlops(per_token * lengths[0], "6 N T + 12 T^2 d per attention layer")


LABELS = frozenset({"id2label", "label2id", "problem_type"})
"""Fields of a classifier that change no number."""
