"""`MaskedLM`: an encoder of text that predicts tokens from what is on both sides of them."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ConfigError
from axcore.interop.family import CheckpointInfo
from axcore.layers import (
    TOKEN_TYPES,
    Activation,
    LayerNorm,
    Linear,
    TokenInfo,
    activation_fn,
    packed_rows,
    whole_rows,
)
from axcore.models.causal_lm import (
    BATCH,
    Decoder,
    Head,
    Hidden,
    Table,
    check_vocab_size,
    flops_per_token,
)
from axcore.module import NATS_A_TOKEN, BatchSpec, ModelFlops, Module, Param, entry

OPTIONAL = ("segment_ids", "token_mask", TOKEN_TYPES)
"""Arrays that a batch may have next to `BATCH`."""

Tokens = Int[Array, "batch time"]


class TokenTransform(Module):
    """`norm(act(linear(x)))`, between an encoder and its head.

    Source: Devlin et al. 2018, arXiv:1810.04805, as published. Slot protocol: the parent fills
    `dim`.
    """

    @config
    class Config(Module.Config["TokenTransform"]):
        """The config of a `TokenTransform`.

        Args:
            dim: Size of a token.
            linear: The projection.
            activation: Applied to its result.
            norm: Applied last.
        """

        dim: PositiveInt = REQUIRED
        linear: Module.Config = Linear.Config()
        activation: Activation = "gelu"
        norm: Module.Config = LayerNorm.Config()

    def setup(self, cfg: Config) -> None:
        """Build the projection and the norm."""
        self.linear = cfg.linear.build(in_dim=cfg.dim, out_dim=cfg.dim, axes=("embed", None))
        self.norm = cfg.norm.build(dim=cfg.dim)

    def forward(self, x: Hidden) -> Hidden:
        """Return what the head projects."""
        return self.norm(activation_fn(self.config.activation)(self.linear(x)))


class BiasedTiedHead(Head):
    """Projects by the embedding table, and adds a bias for each token, behind the cap."""

    @config
    class Config(Head.Config):
        """The config of a `BiasedTiedHead`; it has the fields of every head."""

    def setup(self, cfg: Head.Config) -> None:
        """Declare the bias, and that tokens are multiplied by another module's table."""
        self.inactive_params = cfg.vocab_size - cfg.vocab_size * cfg.dim
        self.bias = Param((cfg.vocab_size,), axes=("vocab",), init=0.0, cast=False)

    def projection(self, table: Table) -> Table:
        """Return the embedding table."""
        return table

    def _logits(self, x: Hidden, projection: Table) -> Float[Array, "batch time vocab"]:
        return super()._logits(x, projection) + self.bias.astype(jnp.float32)[None, None, :]

    def _loss_and_correct(
        self,
        x: Hidden,
        table: Table,
        targets: Int[Array, "batch time"],
        weights: Float[Array, "batch time"],
    ) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
        # No kernel of the cross-entropy knows a bias; memory is as for `log_probs`.
        def of_some(logits: Array, targets: Array) -> tuple[Array, ...]:
            log_partition = jax.nn.logsumexp(logits, axis=-1)
            # A comparison and not a gather: logits may be sharded by vocabulary.
            is_target = jax.nn.one_hot(targets, logits.shape[-1], dtype=bool)
            chosen = jnp.sum(jnp.where(is_target, logits, 0), axis=-1)
            is_right = (jnp.argmax(logits, axis=-1) == targets).astype(jnp.float32)
            return log_partition - chosen, jnp.square(log_partition), is_right

        nll, squared, is_right = self._in_pieces(of_some, x, table, targets)
        weight = jnp.sum(weights)
        if self.config.z_loss:
            self.add_regularizer("z", jnp.sum(squared * weights), weight, scale=self.config.z_loss)
        return jnp.sum(nll * weights), weight, jnp.sum(is_right * weights)


class MaskedLM(Module):
    """An encoder, and logits of the token in each place; trained on those that are hidden from it.

    `axcore.tasks.MaskedTokens` hides them. As the root of a tree it takes its sizes from its own
    config.

    Source: Devlin et al. 2018, arXiv:1810.04805, section 3.1.
    """

    @config
    class Config(Module.Config["MaskedLM"]):
        """Describes a `MaskedLM`.

        Args:
            vocab_size: Number of tokens; at least the tokenizer's.
            dim: Size of a token's vector.
            encoder: From tokens to hidden vectors; its layers are not causal.
            transform: From hidden vectors to what the head projects.
            head: From there to logits and the loss.
            published: The pretrained checkpoint that this model was read from.
        """

        vocab_size: PositiveInt = REQUIRED
        dim: PositiveInt = REQUIRED
        encoder: Module.Config = Decoder.Config()
        transform: Module.Config = TokenTransform.Config()
        head: Module.Config = BiasedTiedHead.Config()
        published: CheckpointInfo | None = None

    def setup(self, cfg: Config) -> None:
        """Build the parts."""
        # Not only called: checkers take each for whatever its slot holds, as a slot has no type.
        self.encoder: Any = cfg.encoder.build(vocab_size=cfg.vocab_size, dim=cfg.dim)
        self.transform = cfg.transform.build(dim=cfg.dim)
        self.head: Any = cfg.head.build(dim=cfg.dim, vocab_size=cfg.vocab_size)

    def forward(self, batch: Mapping[str, Array]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Add the cross-entropy of a batch as a loss, and return its sum and weight.

        `accuracy` is reported, the share of hidden tokens that are the likeliest in their place.

        Args:
            batch: `tokens`, some of which are hidden; `targets`, the token that belongs in each
                place; `positions` (`[batch, time]` ints) and `loss_weights` (floats), which are
                zero where nothing is hidden. It may have `segment_ids` or `token_mask`, as
                `axcore.data` makes them, and `token_types` (ints).
        """
        x = self._encoded(batch["tokens"], packed_rows(batch), batch.get(TOKEN_TYPES))
        total, weight, num_right = self.head.loss_and_correct(
            self.transform(x),
            self.encoder.embedding.weight,
            batch["targets"],
            batch["loss_weights"],
        )
        self.add_loss("cross_entropy", total, weight)
        self.add_measure("accuracy", num_right, weight)
        return total, weight

    def check_batch(self, batch: BatchSpec) -> None:
        """Check that a batch is of tokens, and that there is a logit for each of them.

        Raises:
            ConfigError: It is not, or there is not, or it has arrays that would be passed over.
        """
        missing = [name for name in BATCH if name not in batch.arrays]
        unread = [name for name in batch.arrays if name not in (*BATCH, *OPTIONAL)]
        if missing or unread:
            raise ConfigError(
                f"MaskedLM is trained on {', '.join(BATCH)}, and may have {', '.join(OPTIONAL)}; "
                f"a batch has {', '.join(batch.arrays)}",
                where="data",
                hint="train it on axcore.data.Data with task=MaskedTokens.Config()",
            )
        check_vocab_size(self.config.vocab_size, batch.arrays["tokens"])

    def metric_units(self) -> Mapping[str, str]:
        """Return nats a token, for the cross-entropy."""
        units = dict.fromkeys(("loss", "loss/cross_entropy"), NATS_A_TOKEN)
        return {**units, "accuracy": "of hidden tokens"}

    def flops_per_unit(self, batch: BatchSpec) -> ModelFlops:
        """Return the model FLOPs of a token."""
        # A token sees all others; `flops_per_token` counts half of them, as of causal attention.
        per_token = flops_per_token(self, 2 * batch.axis_sizes()["time"])
        return ModelFlops(per_token, "6 N + 12 T d per attention layer")

    @entry
    def logits(
        self,
        tokens: Tokens,
        info: TokenInfo | None = None,
        token_types: Tokens | None = None,
    ) -> Float[Array, "batch time vocab"]:
        """Return float32 logits of the token in each place.

        Args:
            tokens: Of the rows.
            info: Of the tokens; may be left out where rows are whole.
            token_types: The type of each; 0 where None.
        """
        x = self.transform(self._encoded(tokens, info or whole_rows(tokens), token_types))
        logits: Array = self.head(x, self.encoder.embedding.weight)
        return logits

    @entry
    def hidden(
        self, tokens: Tokens, info: TokenInfo, token_types: Tokens | None = None
    ) -> Float[Array, "batch time dim"]:
        """Return the encoder's vector of each token."""
        return self._encoded(tokens, info, token_types)

    def _encoded(
        self, tokens: Tokens, info: TokenInfo, token_types: Tokens | None
    ) -> Float[Array, "batch time dim"]:
        with self.with_shared(TOKEN_TYPES, token_types):
            x: Array = self.encoder(tokens, info)
        return x
