"""`RewardModel`: scores of answers, learned from pairs; `rewards` are those of any rows of tokens.

Letters: B rows, S sequences of a row, T tokens of a sequence.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import NonNegativeFloat, config
from axcore.errors import ConfigError
from axcore.layers import ScalarHead, TokenInfo, whole_rows
from axcore.module import BatchSpec, Module, functional
from axcore.tasks.preference import add_reward_measures, check_vocabulary
from axcore.tasks.task import Task

BATCH = ("tokens", "token_mask", "row_weights")
"""The arrays of a batch, as `axcore.data.PreferenceData` makes them without targets."""


class RewardModel(Task):
    """`-log sigmoid(r_chosen - r_rejected)`, r what the model's head gives the last token.

    Source: Bradley and Terry 1952, "Rank analysis of incomplete block designs"; Ouyang et al. 2022,
    arXiv:2203.02155, eq. 1; Eisenstein et al. 2023, arXiv:2312.09244, section 5, for centering.
    """

    @config
    class Config(Task.Config):
        """Describes a `RewardModel`.

        Args:
            centering_weight: Weight of the squared sum of a pair's rewards, which keeps rewards
                near 0; the paper has 0.01.
        """

        centering_weight: NonNegativeFloat = 0.0

    def forward(self, batch: Mapping[str, Array]) -> None:
        """Add the mean over pairs of their losses, by the name `preference`."""
        tokens_BST, mask_BST, weights = (batch[name] for name in BATCH)
        # Both answers of a pair are rows to the model.
        tokens, mask = (one.reshape(-1, one.shape[-1]) for one in (tokens_BST, mask_BST))
        info = whole_rows(tokens, mask)
        model: Any = self.model  # one with `logits`, as `CausalLM` has
        scores = _of_last_token(model.logits(tokens, info, last_places(tokens, info)))
        found = scores.reshape(tokens_BST.shape[:2])
        count = jnp.sum(weights)
        losses = -jax.nn.log_sigmoid(found[:, 0] - found[:, 1])
        self.add_loss("preference", jnp.sum(losses * weights), count)
        if scale := self.config.centering_weight:
            squares = jnp.sum(found, axis=1) ** 2
            self.add_regularizer("centering", jnp.sum(squares * weights), count, scale=scale)
        add_reward_measures(self, found, weights)
        self.add_measure("reward_mean", jnp.sum(jnp.mean(found, axis=1) * weights), count)

    def metric_units(self) -> Mapping[str, str]:
        """Return that the loss is of pairs, and that the accuracy is a share of them."""
        return {"loss": "a pair", "reward_accuracy": "of pairs"}

    def check_batch(self, batch: BatchSpec) -> None:
        """Check that batches are of pairs without targets, and that the model gives scores.

        Raises:
            ConfigError: They are not, or it does not.
        """
        if set(batch.arrays) != set(BATCH):
            raise ConfigError(
                f"RewardModel is trained on {', '.join(sorted(BATCH))}, and a batch has "
                f"{', '.join(sorted(batch.arrays))}",
                where="data",
                hint="train it on axcore.data.PreferenceData, whose source reads by ChatPairs, "
                "with --set data.has_targets=false; the experiment reward-model does",
            )
        head = getattr(self.model, "head", None)
        if not isinstance(head, ScalarHead):
            raise ConfigError(
                f"RewardModel needs a model whose head gives one number; the head is "
                f"{'not there' if head is None else f'a {type(head).__qualname__}'}",
                where="model.head",
                hint="--modify scalar_head",
            )
        check_vocabulary(self.model, batch)


def rewards(
    model: Module, state: Any, tokens: Int[Array, "batch time"], info: TokenInfo | None = None
) -> Float[Array, " batch"]:
    """Return the float32 reward of each row, that of its last token which is not padding.

    Args:
        model: A model whose head is a `ScalarHead`.
        state: Of the model.
        tokens: Of the rows; padding follows what is read.
        info: Of the tokens; by default all of them are read.
    """
    info = whole_rows(tokens) if info is None else info
    places = last_places(tokens, info)
    scores, _ = functional(model, state, tokens, info, places, method="logits")
    return _of_last_token(scores)


def last_places(tokens: Int[Array, "batch time"], info: TokenInfo) -> Int[Array, "batch 1"]:
    """Return the place of the last token of each row that is not padding; 0 where all are."""
    places = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :], tokens.shape)
    if info.is_real is None:
        return places[:, -1:]
    return jnp.max(jnp.where(info.is_real, places, 0), axis=1, keepdims=True)


def _of_last_token(scores: Float[Array, "batch 1 1"]) -> Float[Array, " batch"]:
    return scores[:, 0, 0]
