"""`SpeechToText`: an encoder of sound, and a decoder that writes down what it hears.

Letters: B rows, S samples, T frames, L tokens of a text, V vocabulary.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ConfigError
from axcore.interop import CheckpointInfo
from axcore.layers import (
    CROSS_SOURCE,
    CrossSource,
    StoredSource,
    TokenInfo,
    store_source,
    whole_rows,
)
from axcore.models import Decoder, TiedHead, check_vocab_size, flops_per_token
from axcore.module import NATS_A_TOKEN, BatchSpec, ModelFlops, Module, entry
from axcore.tasks import ROW_WEIGHTS
from axl_audio.encoder import Encoded, SpeechEncoder
from axl_audio.features import Features, LogMel, SpecAugment, WhisperLogMel

BATCH = ("sound", "sound_length", "text", "text_mask")
"""The arrays of a batch that it is trained on."""

Text = Int[Array, "batch length"]


class SpeechToText(Module):
    """A transformer whose decoder attends over the encoder's tokens, trained on the next token.

    As the root of a tree it takes its sizes from its own config.

    Source: Radford et al. 2022, arXiv:2212.04356, section 2.2.
    """

    logits_of_call: ClassVar[str] = "cached_logits"

    @config
    class Config(Module.Config["SpeechToText"]):
        """The config of a `SpeechToText`.

        Args:
            vocab_size: V.
            dim: Size of a token, of encoder and decoder.
            features: From samples to frames.
            augment: Hides parts of the frames in training; None leaves them as they are.
            encoder: From frames to tokens.
            decoder: From tokens of the text to hidden vectors; its layers have cross-attention.
            head: From hidden vectors to logits and the loss.
            published: The pretrained checkpoint that this model was read from.
        """

        vocab_size: PositiveInt = REQUIRED
        dim: PositiveInt = REQUIRED
        features: LogMel.Config = WhisperLogMel.Config()
        augment: SpecAugment.Config | None = None
        encoder: SpeechEncoder.Config = SpeechEncoder.Config()
        decoder: Decoder.Config = REQUIRED
        head: Module.Config = TiedHead.Config()
        published: CheckpointInfo | None = None

    def setup(self, cfg: Config) -> None:
        """Build the parts."""
        self.features = cfg.features.build()
        if cfg.augment is not None:
            self.augment = cfg.augment.build()
        self.encoder = cfg.encoder.build(in_dim=cfg.features.num_bands, dim=cfg.dim)
        self.decoder: Any = cfg.decoder.build(vocab_size=cfg.vocab_size, dim=cfg.dim)
        self.head: Any = cfg.head.build(vocab_size=cfg.vocab_size, dim=cfg.dim)

    def forward(self, batch: Mapping[str, Array]) -> None:
        """Add the cross-entropy of each token of the texts but the first.

        Args:
            batch: `sound` `[B, S]` and `sound_length` `[B]`, as `Audio` makes them; `text` and
                `text_mask` `[B, L]`, as `axcore.data.Text` does, with the tokens that begin and end
                a text; and `row_weights` `[B]`, if rows do not weigh the same.
        """
        text, is_token = batch["text"], batch["text_mask"]
        tokens, targets = text[:, :-1], text[:, 1:]
        weights = is_token[:, 1:].astype(jnp.float32)
        if ROW_WEIGHTS in batch:
            weights = weights * batch[ROW_WEIGHTS][:, None]
        source = self._source(self._encoded(batch["sound"], batch["sound_length"]))
        # Causal: a token sees nothing behind it, so padding needs no mask.
        hidden = self._decoded(source, tokens, whole_rows(tokens))
        total, weight = self.head.loss(hidden, self.decoder.embedding.weight, targets, weights)
        self.add_loss("cross_entropy", total, weight)

    def check_batch(self, batch: BatchSpec) -> None:
        """Check that a batch has sounds and texts, and the model a logit for each token.

        Raises:
            ConfigError: It does not.
        """
        if {*BATCH, ROW_WEIGHTS} != {*batch.arrays, ROW_WEIGHTS}:
            raise ConfigError(
                f"SpeechToText is trained on {', '.join(BATCH)}, and a batch has "
                f"{', '.join(batch.arrays)}",
                where="data",
                hint='features={"sound": Audio.Config(...), "text": Text.Config(...)}',
            )
        check_vocab_size(self.config.vocab_size, batch.arrays["text"])

    def metric_units(self) -> Mapping[str, str]:
        """Return nats a token, for the cross-entropy."""
        return dict.fromkeys(("loss", "loss/cross_entropy"), NATS_A_TOKEN)

    def flops_per_unit(self, batch: BatchSpec) -> ModelFlops:
        """Return the model FLOPs of a row, forward and backward; those of features are left out."""
        cfg = self.config
        source = self.num_source_tokens(batch.arrays["sound"].shape[1])
        target = batch.arrays["text"].shape[1] - 1
        # A token of the sound sees all others, where `flops_per_token` counts half, as if causal.
        encoder = flops_per_token(self.encoder, 2 * source) * source
        decoder = flops_per_token(self.decoder, target) * target
        head = 6.0 * cfg.vocab_size * cfg.dim * target
        # Keys and values of cross-attention are made of the source, and seen by each token.
        of_source = sum(
            math.prod(one.shape)
            for one in jax.tree.leaves(self.decoder.param_specs())
            if "cross_attention" in one.path and {"k", "v"}.intersection(one.path)
        )
        cross = 6.0 * of_source * (source - target) + 6.0 * of_source / cfg.dim * source * target
        return ModelFlops(
            encoder + decoder + head + cross,
            "6 N T + 12 S^2 d + 6 L^2 d + 12 S L d per attention layer",
        )

    @entry
    def logits(self, features: Features, tokens: Text) -> Float[Array, "batch length vocab"]:
        """Return float32 logits of the token after each.

        Args:
            features: Of the sounds.
            tokens: Of the texts, with the token that begins them.
        """
        source = self._source(self.encoder(features))
        hidden = self._decoded(source, tokens, whole_rows(tokens))
        logits: Array = self.head(hidden, self.decoder.embedding.weight)
        return logits

    @entry
    def store_inputs(
        self,
        inputs: tuple[Float[Array, "n samples"], Int[Array, " n"]],
        slots: Int[Array, " n"],
    ) -> None:
        """Encode sounds, and keep what the decoder reads of them; of a model that serves.

        Args:
            inputs: Samples `[n, S]`, and how many of each row are not padding.
            slots: Row of the caches that each has.
        """
        store_source(self.decoder, self._source(self._encoded(*inputs)), slots)

    @entry
    def cached_logits(
        self, tokens: Text, info: TokenInfo, at: Int[Array, "batch places"]
    ) -> Float[Array, "batch places vocab"]:
        """Return float32 logits of the token after those at some places; of a model that serves.

        Args:
            tokens: Of the texts.
            info: Of the tokens, which follow others of their row.
            at: Places of each row.
        """
        hidden = self._decoded(StoredSource(info.slots), tokens, info)
        hidden = jnp.take_along_axis(hidden, at[:, :, None], axis=1)
        logits: Array = self.head(hidden, self.decoder.embedding.weight)
        return logits

    def num_source_tokens(self, num_samples: int) -> int:
        """Return how many tokens the encoder makes of so many samples."""
        cfg = self.config
        return cfg.encoder.subsampling.num_tokens(cfg.features.num_frames(num_samples))

    def _encoded(self, sound: Array, length: Array) -> Encoded:
        features = self.features(sound, length)
        if self.config.augment is not None:
            features = self.augment(features)
        return self.encoder(features)

    def _source(self, encoded: Encoded) -> CrossSource:
        is_real = None if self.config.encoder.sees_padding else encoded.is_real
        return CrossSource(encoded.tokens, is_real)

    def _decoded(
        self, source: CrossSource | StoredSource, tokens: Text, info: TokenInfo
    ) -> Float[Array, "batch length dim"]:
        with self.with_shared(CROSS_SOURCE, source):
            hidden: Array = self.decoder(tokens, info)
            return hidden
