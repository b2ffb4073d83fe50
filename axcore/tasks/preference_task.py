"""`PreferenceTask`: the log-probabilities of labelled answers, and a loss of each row by them.

Letters: B rows, S sequences of a row, T tokens of a sequence.
"""

from collections.abc import Mapping
from typing import Any

import attrs
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.errors import ConfigError
from axcore.layers import whole_rows
from axcore.module import BatchSpec
from axcore.tasks.reference import ReferenceTask
from axcore.tasks.task import Task

BATCH = ("tokens", "targets", "token_mask", "loss_weights", "row_weights")
"""The arrays of a batch, as `axcore.data.PreferenceData` makes them."""


@attrs.frozen
class Answers:
    """What a model says of the answers of a batch.

    Attributes:
        log_probs: Sum over the tokens of each answer, in nats.
        num_tokens: Tokens of each answer.
    """

    log_probs: Float[Array, "batch sequences"]
    num_tokens: Float[Array, "batch sequences"]

    @property
    def mean_log_probs(self) -> Float[Array, "batch sequences"]:
        """Mean over the tokens of each answer; 0 of rows of padding."""
        return self.log_probs / jnp.maximum(self.num_tokens, 1)


class PreferenceTask(ReferenceTask):
    """An objective on labelled answers. A subclass has `row_losses`.

    Attributes:
        extra_arrays: Arrays of a batch that it reads besides `BATCH`.
        has_reference: Whether it compares with the model before training.
        loss_unit: The unit of its loss.
    """

    extra_arrays: tuple[str, ...] = ()
    has_reference: bool = True
    loss_unit: str = "a pair"

    def row_losses(
        self, batch: Mapping[str, Array], policy: Answers, reference: Answers | None
    ) -> Float[Array, " batch"]:
        """Returns the loss of each row.

        Args:
            batch: The batch.
            policy: What the model says.
            reference: What it said before training; None for objectives without.
        """
        raise NotImplementedError(f"{type(self).__qualname__} has no row_losses")

    def forward(self, batch: Mapping[str, Array]) -> None:
        """Adds the mean over rows of their losses, by the name `preference`."""
        tokens, targets, token_mask = (_flat(batch[name]) for name in BATCH[:3])
        inputs = tokens, targets, whole_rows(tokens, token_mask)
        policy = _answers(self.model.log_probs(*inputs), batch)
        reference = None
        if self.has_reference:
            reference = _answers(self.reference("log_probs", *inputs), batch)
        weights = batch["row_weights"]
        losses = self.row_losses(batch, policy, reference)
        self.add_loss("preference", jnp.sum(losses * weights), jnp.sum(weights))

    def add_reward_measures(
        self, rewards: Float[Array, "batch 2"], weights: Float[Array, " batch"]
    ) -> None:
        """Reports by how much the chosen answer is ahead, and in what share of rows it is."""
        margin = rewards[:, 0] - rewards[:, 1]
        count = jnp.sum(weights)
        self.add_measure("reward_margin", jnp.sum(margin * weights), count)
        self.add_measure("reward_accuracy", jnp.sum(jnp.where(margin > 0, weights, 0)), count)

    def metric_units(self) -> Mapping[str, str]:
        """Returns the unit of the loss, and that the accuracy is a share of pairs."""
        return {"loss": self.loss_unit, "reward_accuracy": "of pairs"}

    def kept_specs(self, specs: dict[str, object]) -> dict[str, object]:
        """Returns the specs of the copy, for objectives with a reference."""
        if self.has_reference:
            return super().kept_specs(specs)
        return Task.kept_specs(self, specs)

    def kept_state(self, state: dict[str, object], specs: dict[str, object]) -> dict[str, object]:
        """Returns the copy, for objectives with a reference."""
        if self.has_reference:
            return super().kept_state(state, specs)
        return Task.kept_state(self, state, specs)

    def check_batch(self, batch: BatchSpec) -> None:
        """Checks that batches are of labelled answers, in tokens of the model.

        Raises:
            ConfigError: They are not, or they have arrays that would be passed over.
        """
        name, wanted = type(self).__qualname__, {*BATCH, *self.extra_arrays}
        if set(batch.arrays) != wanted:
            raise ConfigError(
                f"{name} is trained on {', '.join(sorted(wanted))}, and a batch has "
                f"{', '.join(sorted(batch.arrays))}",
                where="data",
                hint="train it on axcore.data.PreferenceData, whose source reads by "
                + ("LabelledChats" if self.extra_arrays else "ChatPairs"),
            )
        cfg: Any = self.model.config
        size, num_tokens = cfg.vocab_size, batch.arrays["tokens"].num_values
        if size < num_tokens:
            raise ConfigError(
                f"vocab_size is {size}, but the tokenizer has {num_tokens} tokens",
                where="model.vocab_size",
                hint=f"--set model.vocab_size={num_tokens}",
            )


def _flat(array: Array) -> Array:
    """Returns rows `[B S, T]` of `[B, S, T]`."""
    return array.reshape(-1, array.shape[-1])


def _answers(log_probs: Float[Array, "rows time"], batch: Mapping[str, Array]) -> Answers:
    weights_BST = batch["loss_weights"]
    log_probs_BST = log_probs.reshape(weights_BST.shape)
    chosen = jnp.where(weights_BST != 0, log_probs_BST * weights_BST, 0)
    return Answers(jnp.sum(chosen, axis=-1), jnp.sum(weights_BST, axis=-1))
