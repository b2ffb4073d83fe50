"""`CausalLM`: a decoder and a head, trained to predict the next token."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ConfigError, ModuleError
from axcore.interop.family import PublishedAs
from axcore.layers.tokens import TOKEN_MASK, TokenInfo, packed_rows, whole_rows
from axcore.models.decoder import Decoder
from axcore.models.flops import FORMULA, flops_per_token
from axcore.models.head import UntiedHead
from axcore.module import NATS_A_TOKEN, BatchSpec, ModelFlops, Module, entry

BATCH = ("tokens", "targets", "positions", "loss_weights")
"""The arrays of a batch that a `CausalLM` is called with."""

OPTIONAL = ("segment_ids", TOKEN_MASK)
"""Arrays that say which tokens are padding, and keep documents apart."""


class CausalLM(Module):
    """A causal language model. As the root of a tree it takes its sizes from its own config."""

    @config
    class Config(Module.Config["CausalLM"]):
        """Describes a `CausalLM`.

        Args:
            vocab_size: Number of tokens; at least the tokenizer's.
            dim: Size of a token's vector.
            decoder: From tokens to hidden vectors.
            head: From hidden vectors to logits and the loss.
            published: The published model that this one was read from, which decides what exports
                say besides the numbers.
        """

        vocab_size: PositiveInt = REQUIRED
        dim: PositiveInt = REQUIRED
        decoder: Module.Config = Decoder.Config()
        head: Module.Config = UntiedHead.Config()
        published: PublishedAs | None = None

    def setup(self, cfg: Config) -> None:
        """Builds decoder and head."""
        self.decoder = cfg.decoder.build(vocab_size=cfg.vocab_size, dim=cfg.dim)
        self.head = cfg.head.build(dim=cfg.dim, vocab_size=cfg.vocab_size)

    def forward(self, batch: Mapping[str, Array]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Adds the cross-entropy of a batch as a loss, and returns its sum and weight.

        Args:
            batch: `tokens`, `targets`, `positions` (`[batch, time]` ints) and `loss_weights`
                (`[batch, time]` floats), as `axcore.data` makes them; and `segment_ids` (ints)
                where a row holds several documents, from one of which attention reaches no other,
                or `token_mask` (bools) where it is read as one and may end in padding.
        """
        _check_batch(batch)
        x = self.decoder(batch["tokens"], packed_rows(batch))
        table = self.decoder.embedding.weight
        total, weight = self.head.loss(x, table, batch["targets"], batch["loss_weights"])
        self.add_loss("cross_entropy", total, weight)
        return total, weight

    def check_batch(self, batch: BatchSpec) -> None:
        """Checks that a batch is of tokens, and that there is room for each of them.

        Raises:
            ConfigError: It is not, or there is not, or it has arrays that would be passed over.
        """
        missing = [name for name in BATCH if name not in batch.arrays]
        if missing:
            raise ConfigError(
                f"CausalLM is trained on {', '.join(BATCH)}, but a batch has no "
                f"{', '.join(missing)}; it has {', '.join(batch.arrays)}",
                where="data",
                hint="train it on axcore.data.Data, or on what yields the same arrays",
            )
        if unread := [name for name in batch.arrays if name not in (*BATCH, *OPTIONAL)]:
            raise ConfigError(
                f"a batch has {', '.join(unread)}, which CausalLM does not read",
                where="data",
                hint="segment_ids keep the documents of a row apart, and token_mask says what is "
                "not padding; leave other arrays out",
            )
        size, num_tokens = self.config.vocab_size, batch.arrays["tokens"].num_values
        if num_tokens is not None and size < num_tokens:
            raise ConfigError(
                f"vocab_size is {size}, but the tokenizer has {num_tokens} tokens",
                where="model.vocab_size",
                hint=f"--set model.vocab_size={num_tokens}",
            )

    def metric_units(self) -> Mapping[str, str]:
        """Returns nats a token, for the cross-entropy."""
        return dict.fromkeys(("loss", "loss/cross_entropy"), NATS_A_TOKEN)

    def flops_per_unit(self, batch: BatchSpec) -> ModelFlops:
        """Returns the model FLOPs of a token."""
        return ModelFlops(flops_per_token(self, batch.axis_sizes()["time"]), FORMULA)

    @entry
    def logits(
        self,
        tokens: Int[Array, "batch time"],
        info: TokenInfo | None = None,
        at: Int[Array, "batch places"] | None = None,
    ) -> Float[Array, "batch places vocab"]:
        """Returns float32 logits of the token after each, or after those `at` some places only.

        Args:
            tokens: Of the rows.
            info: Of the tokens; may be left out outside of training, where rows are whole.
            at: Places of each row.

        Raises:
            ModuleError: There is no info in training.
        """
        if info is None:
            self._check_is_not_trained()
            info = whole_rows(tokens)
        x = self.decoder(tokens, info)
        if at is not None:
            x = jnp.take_along_axis(x, at[:, :, None], axis=1)
        return self.head(x, self.decoder.embedding.weight)

    @entry
    def log_probs(
        self,
        tokens: Int[Array, "batch time"],
        targets: Int[Array, "batch time"],
        info: TokenInfo,
    ) -> Float[Array, "batch time"]:
        """Returns the float32 log-probability of each target after the tokens up to its place."""
        x = self.decoder(tokens, info)
        return self.head.log_probs(x, self.decoder.embedding.weight, targets)

    def _check_is_not_trained(self) -> None:
        """Checks that nothing counts tokens of which nobody said whether they are padding.

        Raises:
            ModuleError: The model is being trained: routers and statistics count them.
        """
        if self.training:
            raise ModuleError(
                "logits are asked for in training without a TokenInfo, which says what is padding",
                hint="pass packed_rows(batch) or whole_rows(tokens, token_mask), of axcore.layers",
            )


def _check_batch(batch: Any) -> None:
    """Checks that a model is called with a batch.

    Raises:
        ModuleError: It is something else, or lacks arrays.
    """
    names = batch if isinstance(batch, Mapping) else ()
    missing = [name for name in BATCH if name not in names]
    if missing:
        got = f"without {', '.join(missing)}" if names else f"with {_kind(batch)}"
        raise ModuleError(
            f"the model is called {got}; expected a mapping of {', '.join(BATCH)}",
            hint='for logits of tokens: functional(model, state, tokens, method="logits")',
        )


def _kind(value: Any) -> str:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return type(value).__qualname__ if shape is None else f"an array of {dtype}{list(shape)}"
