"""`MaskedTokens`: some tokens are hidden, and the model says which they were.

Letters: B rows, T tokens of a row.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from axcore.config import NonNegativeInt, PositiveInt, UnitInterval, config
from axcore.errors import ConfigError
from axcore.layers import packed_rows
from axcore.models import MaskedLM
from axcore.module import BatchSpec, entry
from axcore.tasks.flow_matching import row_hashes
from axcore.tasks.task import Task

_EVALUATION_SEED = 0
"""Of what evaluations hide, which is the same in every run so that their losses compare."""


class MaskedTokens(Task):
    """Cross-entropy of tokens that are hidden from the model, which is a `MaskedLM`.

    A share of the tokens is hidden: most of them behind the mask token, some behind a random one,
    and some are left as they are, so that the model learns to look at every token. Which, is a
    function of the row's content, and in training of the step: evaluations compare, and a resumed
    run hides what it would have hidden. Padding is never hidden, and changes nothing.

    Batches are those that a causal model is trained on. Their `targets` and `loss_weights` are
    replaced: every document's last token is a target in none of them, and not an input here.

    Source: Devlin et al. 2018, arXiv:1810.04805, section 3.1, task 1.
    """

    @config
    class Config(Task.Config):
        """Describes `MaskedTokens`.

        Args:
            mask_token: The token that hides others: `[MASK]` of the tokenizer, 103 of BERT's.
            special_tokens: Tokens that are never hidden, those that frame texts for example.
            fraction: Share of tokens that are hidden, each on its own; ModernBERT hides 0.3.
            masked: Share of these that become the mask token.
            randomized: Share of these that become a random token; others are left as they are.
            num_random: Random tokens are below this number; all tokens where None.
        """

        mask_token: NonNegativeInt = 103
        special_tokens: tuple[int, ...] = ()
        fraction: UnitInterval = 0.15
        masked: UnitInterval = 0.8
        randomized: UnitInterval = 0.1
        num_random: PositiveInt | None = None

    config: Config
    model: MaskedLM

    def setup(self, cfg: Any) -> None:
        """Build the model, and check the shares."""
        super().setup(cfg)
        if cfg.masked + cfg.randomized > 1:
            raise ConfigError(
                f"masked is {cfg.masked} and randomized {cfg.randomized}: more than all",
                where="task.masked",
                hint="choose shares whose sum is at most 1, such as 0.8 and 0.1",
            )

    def forward(self, batch: Mapping[str, Array]) -> None:
        """Add the loss of the hidden tokens of a batch, and how many of them were found."""
        tokens = batch["tokens"]
        seen, is_hidden = self.hide(tokens, packed_rows(batch).is_real)
        weights = is_hidden.astype(jnp.float32)
        self.model({**batch, "tokens": seen, "targets": tokens, "loss_weights": weights})

    @entry
    def hide(
        self, tokens: Int[Array, "batch time"], is_real: Bool[Array, "batch time"] | None
    ) -> tuple[Int[Array, "batch time"], Bool[Array, "batch time"]]:
        """Return what the model sees, and which tokens are hidden.

        Args:
            tokens: Of the rows.
            is_real: Which of them are not padding; None where all are.
        """
        cfg = self.config
        may_hide = jnp.ones(tokens.shape, bool) if is_real is None else is_real
        bits = self._bits(jnp.where(may_hide, tokens, 0))
        for special in (*cfg.special_tokens, cfg.mask_token):
            may_hide = may_hide & (tokens != special)
        is_hidden = may_hide & (bits[..., 0] < _threshold(cfg.fraction))
        is_masked = bits[..., 1] < _threshold(cfg.masked)
        is_random = ~is_masked & (bits[..., 1] < _threshold(cfg.masked + cfg.randomized))
        num_random = cfg.num_random or self.model.config.vocab_size
        # The remainder favours small tokens by less than one in 2^32 / num_random.
        random = (bits[..., 2] % jnp.uint32(num_random)).astype(tokens.dtype)
        instead = jnp.where(is_random, random, tokens)
        instead = jnp.where(is_masked, jnp.asarray(cfg.mask_token, tokens.dtype), instead)
        return jnp.where(is_hidden, instead, tokens), is_hidden

    def _bits(self, tokens: Int[Array, "batch time"]) -> Array:
        """Return three uint32 for each token, `[B, T, 3]`."""
        key = self.rng("hidden") if self.training else jax.random.key(_EVALUATION_SEED)
        places = jnp.arange(tokens.shape[1], dtype=jnp.uint32)

        # A key for each place, so that the length of rows decides nothing.
        def of_row(row_hash: Array) -> Array:
            row = jax.random.fold_in(key, row_hash)
            keys = jax.vmap(jax.random.fold_in, (None, 0))(row, places)
            return jax.vmap(lambda key: jax.random.bits(key, (3,), jnp.uint32))(keys)

        bits: Array = jax.vmap(of_row)(row_hashes(tokens))
        return bits

    def metric_units(self) -> Mapping[str, str]:
        """Return those of the model."""
        return self.model.metric_units()

    def check_batch(self, batch: BatchSpec) -> None:
        """Check that the model is one that fills in tokens, and that it has those of the task.

        Raises:
            ConfigError: It is not, or it lacks some; or a batch is of something else than tokens.
        """
        if not isinstance(self.model, MaskedLM):
            raise ConfigError(
                f"{type(self).__qualname__} trains a MaskedLM, and the model is a "
                f"{type(self.model).__qualname__}",
                where="model",
                hint='choose an encoder, such as bert("toy") of axcore.models',
            )
        self.model.check_batch(batch)
        cfg, size = self.config, self.model.config.vocab_size
        largest = max(cfg.mask_token + 1, cfg.num_random or 0)
        if largest > size:
            raise ConfigError(
                f"mask_token is {cfg.mask_token} and num_random {cfg.num_random}, but the model "
                f"has {size} tokens",
                where="task.mask_token",
                hint=f"--set model.vocab_size={largest}, or choose the tokenizer's mask token",
            )


def _threshold(share: float) -> Array:
    """Return the number that as large a share of all uint32 is below."""
    threshold: Array = jnp.uint32(min(round(share * 2.0**32), 2**32 - 1))
    return threshold
