"""`PPO`: proximal policy optimization with a value head, for rewards at the end of a completion.

The head says at each token how much reward is still to come. What it said when a completion was
sampled, and the log-probabilities of then, are recorded with the completion; `finish_batch` makes
advantages and returns of them once, on the host, so that they are the same in every epoch and in
every micro-batch.

Letters: B rows, T tokens of a row.
"""

from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from axcore.config import PositiveFloat, UnitInterval, config
from axcore.errors import ConfigError
from axcore.layers import ScalarHead, TokenInfo, whole_rows
from axcore.module import BatchSpec, ConstantInit, Module, entry
from axcore.tasks.policy_gradient import (
    ADVANTAGES,
    OLD_LOG_PROBS,
    PolicyGradient,
    TokenArray,
    token_penalties,
)
from axcore.tasks.policy_losses import Advantage, KLPenalty
from axcore.tasks.task import TrainedModule

VALUE_HEAD = "value_head"
"""Where the head's parameters are in the state."""

OLD_VALUES = "old_values"
RETURNS = "returns"

_SMALLEST_VARIANCE = 1e-8
"""Is added to a variance before advantages are divided by its root, as TRL does."""

Tokens = Float[np.ndarray, "batch time"]


@config
class GAE:
    """How rewards and values become the advantages of tokens.

    Args:
        gamma: What a reward loses for each token that it comes later.
        lam: 1 compares a token with the rewards that came; 0 with what the value of the next token
            expects.
        is_whitened: Whether the advantages of a batch are shifted to a mean of 0 and divided by
            their deviation.

    Source: Schulman et al. 2015, arXiv:1506.02438, eq. 16.
    """

    gamma: UnitInterval = 1.0
    lam: UnitInterval = 0.95
    is_whitened: bool = True


@config
class ValueLoss:
    """What the value head learns by.

    Args:
        coefficient: Weight of half the squared error.
        clip: How far a value may go from that of the sampling policy before the error counts as at
            this distance, where that is larger; None clips nothing.
        trains_trunk: Whether its gradient reaches the model below the head.
    """

    coefficient: PositiveFloat = 0.1
    clip: PositiveFloat | None = 0.2
    trains_trunk: bool = True


class PPO(PolicyGradient):
    """The clipped objective with an advantage for each token, less what a value head expected.

    The head reads the model's own hidden vectors. The reward comes with the last token that was
    sampled, and `kl` is taken off it token by token; it is not a loss of its own.

    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 9; Ziegler et al. 2019, arXiv:1909.08593,
        eq. 2, for the penalty; Stiennon et al. 2020, arXiv:2009.01325, appendix C.4.
    Differs: The papers' value function is a model of its own, and here a head on the policy's.
    """

    @config
    class Config(PolicyGradient.Config):
        """Describes `PPO`.

        Args:
            gae: How rewards and values become advantages.
            value: What the value head learns by.
            value_head: From hidden vectors to values; it is 0 at first.
        """

        kl: KLPenalty = KLPenalty(form="k1")
        mean_over: Literal["sequence", "token", "constant"] = "token"
        gae: GAE = GAE()
        value: ValueLoss = ValueLoss()
        value_head: Module.Config = ScalarHead.Config(weight_init=ConstantInit(value=0.0))

    config: Config
    penalizes_rewards = True
    watched_metrics = ("reward", "loss/value", "reference_kl", "entropy", "clip_fraction")

    def setup(self, cfg: Any) -> None:
        """Build the model, and the head next to it."""
        super().setup(cfg)
        sizes: Any = cfg.model
        head = cfg.value_head.build(dim=sizes.dim, vocab_size=sizes.vocab_size)
        self.value_head = TrainedModule(head)

    @property
    def always_records(self) -> bool:
        """Whether `record` is needed in any case: advantages are made of it."""
        return True

    def recorded_arrays(self) -> Mapping[str, TokenArray]:
        """Return what advantages and clips need."""
        return {**super().recorded_arrays(), OLD_VALUES: TokenArray()}

    def finished_arrays(self) -> Mapping[str, TokenArray]:
        """Return advantages and returns."""
        return dict.fromkeys((ADVANTAGES, RETURNS), TokenArray())

    def recorded_with(self) -> tuple[str, ...]:
        """Return the head, and the copy of the model where a penalty compares with it."""
        return (VALUE_HEAD, *super().recorded_with())

    @entry
    def record(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Return log-probabilities and values, and the reference's where a penalty needs them."""
        info = whole_rows(batch["tokens"], batch["token_mask"])
        with self.recording_routes(batch) as routes:
            hidden = self._hidden(batch, info)
        log_probs_BT, _ = self._predictions_of(hidden, batch)
        found = {OLD_LOG_PROBS: log_probs_BT, OLD_VALUES: self._values(hidden), **routes}
        return {**found, **self.recorded_reference(batch)}

    def finish_batch(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return a batch with advantages and returns."""
        gae = self.config.gae
        mask_BT = batch["loss_weights"] * batch["row_weights"][:, None]
        rewards_BT = token_rewards(batch, mask_BT, self.config.kl)
        advantages_BT, returns_BT = generalized_advantages(
            rewards_BT, batch[OLD_VALUES], mask_BT, gae
        )
        if gae.is_whitened:
            advantages_BT = whitened(advantages_BT, mask_BT)
        finished = {ADVANTAGES: advantages_BT, RETURNS: returns_BT}
        return {**batch, **{name: one.astype(np.float32) for name, one in finished.items()}}

    def predictions(self, batch: Mapping[str, Array], info: TokenInfo) -> tuple[Array, Array]:
        """Return log-probability and entropy of each token; adds the loss of the values."""
        hidden = self._hidden(batch, info)
        self._add_value_loss(batch, self._values(hidden))
        return self._predictions_of(hidden, batch)

    def token_advantages(
        self, batch: Mapping[str, Array], old_BT: Array, mask_BT: Array
    ) -> Float[Array, "batch time"]:
        """Return the advantages that `finish_batch` made."""
        return batch[ADVANTAGES]

    def _hidden(self, batch: Mapping[str, Array], info: TokenInfo) -> Array:
        model: Any = self.model  # one with `hidden`, as `CausalLM` has
        hidden: Array = model.hidden(batch["tokens"], info)
        return hidden

    def _predictions_of(self, hidden: Array, batch: Mapping[str, Array]) -> tuple[Array, Array]:
        model: Any = self.model
        found: tuple[Array, Array] = model.log_probs_and_entropies_of(
            hidden, batch["targets"], self.config.temperature
        )
        return found

    def _values(self, hidden: Array) -> Float[Array, "batch time"]:
        if not self.config.value.trains_trunk:
            hidden = jax.lax.stop_gradient(hidden)
        # The second is the place of the embedding table, which a head of values does not read.
        values_BT1: Array = self.value_head("forward", hidden, hidden)
        return values_BT1[..., 0]

    def _add_value_loss(self, batch: Mapping[str, Array], values_BT: Array) -> None:
        cfg = self.config.value
        mask_BT = batch["loss_weights"] * batch["row_weights"][:, None]
        old_BT, returns_BT, count = batch[OLD_VALUES], batch[RETURNS], jnp.sum(mask_BT)
        errors_BT = jnp.square(values_BT - returns_BT)
        if cfg.clip is not None:
            near_BT = jnp.clip(values_BT, old_BT - cfg.clip, old_BT + cfg.clip)
            clipped_BT = jnp.square(near_BT - returns_BT)
            is_clipped_BT = (clipped_BT > errors_BT).astype(jnp.float32)
            self.add_measure("value_clip_fraction", jnp.sum(is_clipped_BT * mask_BT), count)
            errors_BT = jnp.maximum(errors_BT, clipped_BT)
        self.add_loss("value", 0.5 * jnp.sum(errors_BT * mask_BT), count, scale=cfg.coefficient)
        self.add_measure("value", jnp.sum(old_BT * mask_BT), count)

    def metric_units(self) -> Mapping[str, str]:
        """Return the units of what is measured."""
        return {**super().metric_units(), "value_clip_fraction": "of tokens"}

    def check_batch(self, batch: BatchSpec) -> None:
        """Check that batches are of rollouts, and that nothing is set that is not read.

        Raises:
            ConfigError: They are not, or something is.
        """
        super().check_batch(batch)
        if self.config.advantage != Advantage():
            raise ConfigError(
                "task.advantage compares the completions of a prompt, and PPO compares with the "
                "values of its head",
                where="task.advantage",
                hint="set task.gae.gamma, task.gae.lam or task.gae.is_whitened, or --modify grpo",
            )


def token_rewards(batch: Mapping[str, np.ndarray], mask_BT: Tokens, penalty: KLPenalty) -> Tokens:
    """Return the reward that comes with each token, in float64.

    The last token that counts has the completion's, and each has the penalty of its distance from
    the reference.
    """
    rewards_BT = np.zeros(mask_BT.shape)
    if penalty.coefficient:
        rewards_BT -= token_penalties(batch, mask_BT, penalty)
    rows = np.flatnonzero(mask_BT.any(axis=1))
    last = mask_BT.shape[1] - 1 - np.argmax(mask_BT[rows, ::-1] > 0, axis=1)
    rewards_BT[rows, last] += batch["rewards"][rows]
    return rewards_BT


def generalized_advantages(
    rewards_BT: Tokens, values_BT: Tokens, mask_BT: Tokens, gae: GAE
) -> tuple[Tokens, Tokens]:
    """Return the advantage and the return of each token, 0 where nothing counts.

    Tokens that do not count, between those that do, take no time: a turn that the policy did not
    write is passed over.

    Args:
        rewards_BT: The reward that comes with each token.
        values_BT: What was expected before each token.
        mask_BT: 1 for tokens that count.
        gae: The two factors.
    """
    counts_BT, values_BT = mask_BT > 0, values_BT.astype(np.float64)
    found_BT = np.zeros(mask_BT.shape)
    next_value_B, advantage_B = np.zeros(len(mask_BT)), np.zeros(len(mask_BT))
    for t in reversed(range(mask_BT.shape[1])):
        error_B = rewards_BT[:, t] + gae.gamma * next_value_B - values_BT[:, t]
        advanced_B = error_B + gae.gamma * gae.lam * advantage_B
        advantage_B = np.where(counts_BT[:, t], advanced_B, advantage_B)
        next_value_B = np.where(counts_BT[:, t], values_BT[:, t], next_value_B)
        found_BT[:, t] = np.where(counts_BT[:, t], advantage_B, 0)
    return found_BT, np.where(counts_BT, found_BT + values_BT, 0)


def whitened(values_BT: Tokens, mask_BT: Tokens) -> Tokens:
    """Return values with a mean of 0 and a deviation of 1 over what counts, else 0."""
    counts_BT = mask_BT > 0
    counted = values_BT[counts_BT]
    if len(counted) < 2:
        return values_BT  # of one value there is no deviation
    scale = 1 / np.sqrt(counted.var(ddof=1) + _SMALLEST_VARIANCE)
    return np.where(counts_BT, (values_BT - counted.mean()) * scale, 0)
