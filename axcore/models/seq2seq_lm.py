"""`Seq2SeqLM`: an encoder reads one text, and a decoder writes another one.

Letters: B rows, S tokens of a source, L tokens of a target, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from axcore.config import REQUIRED, NonNegativeInt, PositiveInt, config
from axcore.errors import ConfigError
from axcore.interop.family import CheckpointInfo
from axcore.layers import (
    CROSS_SOURCE,
    POSITION_BIAS,
    CrossSource,
    Dropout,
    Embedding,
    RelativeBias,
    RMSNorm,
    ScannedLayers,
    StoredSource,
    TokenInfo,
    store_source,
    whole_rows,
)
from axcore.models.causal_lm import (
    Head,
    Hidden,
    Table,
    TiedHead,
    check_vocab_size,
    flops_per_token,
)
from axcore.module import NATS_A_TOKEN, BatchSpec, ModelFlops, Module, entry

BATCH = ("source", "source_mask", "target", "target_mask")
"""The arrays of a batch that it is trained on."""

ROW_WEIGHTS = "row_weights"

Source = Int[Array, "batch source"]
Target = Int[Array, "batch target"]
SourceMask = Bool[Array, "batch source"]


class TransformerStack(Module):
    """Layers and a norm, which may share a bias by distance. Slot protocol: the parent fills `dim`.

    It has no embedding, so that two of them can share one.
    """

    @config
    class Config(Module.Config["TransformerStack"]):
        """Describes a `TransformerStack`.

        Args:
            dim: Size of a token's vector.
            stack: The layers.
            norm: The norm after the last layer.
            bias: Added to the logits of all layers' `BiasedAttention`; None where they have none.
            dropout: Applied before the first layer and after the norm.
        """

        dim: PositiveInt = REQUIRED
        stack: Module.Config = ScannedLayers.Config()
        norm: Module.Config = RMSNorm.Config()
        bias: RelativeBias.Config | None = None
        dropout: Dropout.Config = Dropout.Config()

    def setup(self, cfg: Config) -> None:
        """Build the parts."""
        self.stack = cfg.stack.build(dim=cfg.dim)
        self.norm = cfg.norm.build(dim=cfg.dim)
        if cfg.bias is not None:
            self.bias = cfg.bias.build()
        self.dropout = cfg.dropout.build()

    def forward(self, x: Hidden, info: TokenInfo) -> Hidden:
        """Return a normalised vector for each token."""
        bias = None if self.config.bias is None else self.bias(info)
        with self.with_shared(POSITION_BIAS, bias):
            x = self.stack(self.dropout(x), info)
        return self.dropout(self.norm(x))


class ScaledTiedHead(Head):
    """Projects by the embedding table, divided by the square root of a vector's size.

    Source: Raffel et al. 2019, arXiv:1910.10683, as published.
    """

    def setup(self, cfg: Head.Config) -> None:
        """Declare that tokens are multiplied by the table, which is another module's."""
        self.inactive_params = -cfg.vocab_size * cfg.dim

    def projection(self, table: Table) -> Table:
        """Return the table, scaled."""
        return table * jnp.asarray(self.config.dim**-0.5, table.dtype)


class Seq2SeqLM(Module):
    """A transformer whose decoder attends over the encoder's tokens, trained on the next token.

    The two share a table of embeddings. As the root of a tree it takes its sizes from its own
    config.

    Source: Raffel et al. 2019, arXiv:1910.10683, section 2.1.
    """

    logits_of_call: ClassVar[str] = "cached_logits"

    @config
    class Config(Module.Config["Seq2SeqLM"]):
        """Describes a `Seq2SeqLM`.

        Args:
            vocab_size: V; at least the tokenizer's.
            dim: Size of a token's vector.
            embedding: The token table of both.
            encoder: From the source's vectors to those that the decoder attends over.
            decoder: From the target's vectors to hidden ones; its layers have cross-attention.
            head: From hidden vectors to logits and the loss.
            start_token: What the decoder reads before the target's first token.
            published: The pretrained checkpoint that this model was read from.
        """

        vocab_size: PositiveInt = REQUIRED
        dim: PositiveInt = REQUIRED
        embedding: Module.Config = Embedding.Config()
        encoder: Module.Config = TransformerStack.Config()
        decoder: Module.Config = TransformerStack.Config()
        head: Module.Config = TiedHead.Config()
        start_token: NonNegativeInt = 0
        published: CheckpointInfo | None = None

    def setup(self, cfg: Config) -> None:
        """Build the parts."""
        self.embedding: Any = cfg.embedding.build(vocab_size=cfg.vocab_size, dim=cfg.dim)
        self.encoder = cfg.encoder.build(dim=cfg.dim)
        self.decoder = cfg.decoder.build(dim=cfg.dim)
        self.head: Any = cfg.head.build(dim=cfg.dim, vocab_size=cfg.vocab_size)

    def forward(self, batch: Mapping[str, Array]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Add the cross-entropy of each token of the targets, and return its sum and weight.

        Args:
            batch: `source` and `source_mask` `[B, S]`, `target` and `target_mask` `[B, L]`, as
                `axcore.data.Text` makes them; a target ends with the token that says so. And
                `row_weights` `[B]`, if rows do not weigh the same.
        """
        target = batch["target"]
        weights = batch["target_mask"].astype(jnp.float32)
        if ROW_WEIGHTS in batch:
            weights = weights * batch[ROW_WEIGHTS][:, None]
        encoded = self._encoded(batch["source"], batch["source_mask"])
        hidden = self._decoded(encoded, self._shifted(target), whole_rows(target))
        total, weight = self.head.loss(hidden, self.embedding.weight, target, weights)
        self.add_loss("cross_entropy", total, weight)
        return total, weight

    def check_batch(self, batch: BatchSpec) -> None:
        """Check that a batch has sources and targets, and the model a logit for each token.

        Raises:
            ConfigError: It does not.
        """
        if {*BATCH, ROW_WEIGHTS} != {*batch.arrays, ROW_WEIGHTS}:
            raise ConfigError(
                f"Seq2SeqLM is trained on {', '.join(BATCH)}, and a batch has "
                f"{', '.join(batch.arrays)}",
                where="data",
                hint='features={"source": Text.Config(...), "target": Text.Config(...)}',
            )
        for name in ("source", "target"):
            check_vocab_size(self.config.vocab_size, batch.arrays[name])

    def metric_units(self) -> Mapping[str, str]:
        """Return nats a token, for the cross-entropy."""
        return dict.fromkeys(("loss", "loss/cross_entropy"), NATS_A_TOKEN)

    def flops_per_unit(self, batch: BatchSpec) -> ModelFlops:
        """Return the model FLOPs of a row, forward and backward."""
        source, target = (batch.arrays[name].shape[1] for name in ("source", "target"))
        # A token of the source sees all others; `flops_per_token` counts half, as if causal. Keys
        # of cross-attention are counted for tokens of the target, queries over none of the source.
        encoder = flops_per_token(self.encoder, 2 * source) * source
        head = 6.0 * self.config.vocab_size * self.config.dim * target
        decoder = flops_per_token(self.decoder, target) * target + head
        return ModelFlops(encoder + decoder, "6 N T + 12 S^2 d + 6 L^2 d per attention layer")

    @entry
    def logits(
        self, source: Source, target: Target, source_mask: SourceMask | None = None
    ) -> Float[Array, "batch target vocab"]:
        """Return float32 logits of each token of the target, `[B, L, V]`.

        Args:
            source: Tokens `[B, S]`.
            target: Tokens `[B, L]`, of which each is predicted from those before it.
            source_mask: Which tokens of the source are not padding; None where all are.
        """
        # Causal: a token sees nothing behind it, so padding needs no mask.
        info = whole_rows(target)
        encoded = self._encoded(source, source_mask)
        hidden = self._decoded(encoded, self._shifted(target), info)
        logits: Array = self.head(hidden, self.embedding.weight)
        return logits

    @entry
    def store_inputs(
        self, inputs: tuple[Source, SourceMask | None], slots: Int[Array, " n"]
    ) -> None:
        """Encode sources, and keep what the decoder reads of them; of a model that serves.

        Args:
            inputs: Tokens `[n, S]`, and which of them are not padding; None where all are.
            slots: Row of the caches that each has.
        """
        store_source(self.decoder, self._encoded(*inputs), slots)

    @entry
    def cached_logits(
        self, tokens: Target, info: TokenInfo, at: Int[Array, "batch places"]
    ) -> Float[Array, "batch places vocab"]:
        """Return float32 logits of the token after those at some places; of a model that serves.

        Args:
            tokens: That the decoder reads, `start_token` before the target's first.
            info: Of the tokens, which follow others of their row.
            at: Places of each row.
        """
        hidden = self._decoded(StoredSource(info.slots), tokens, info)
        hidden = jnp.take_along_axis(hidden, at[:, :, None], axis=1)
        logits: Array = self.head(hidden, self.embedding.weight)
        return logits

    def _shifted(self, target: Target) -> Target:
        start = jnp.full((target.shape[0], 1), self.config.start_token, target.dtype)
        return jnp.concatenate([start, target[:, :-1]], axis=1)

    def _encoded(self, source: Source, is_real: SourceMask | None) -> CrossSource:
        info = whole_rows(source, is_real)
        return CrossSource(self.encoder(self.embedding(source, info), info), is_real)

    def _decoded(
        self, encoded: CrossSource | StoredSource, tokens: Target, info: TokenInfo
    ) -> Hidden:
        with self.with_shared(CROSS_SOURCE, encoded):
            hidden: Array = self.decoder(self.embedding(tokens, info), info)
        return hidden
