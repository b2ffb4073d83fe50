"""Preference objectives: DPO, IPO, KTO, ORPO and SimPO, and what they share.

`PreferenceTask` gives the log probabilities of answers, and each objective turns those of a row
into its loss. `ReferenceTask` compares a model with what it was when training began.

Letters: B rows, S sequences of a row, T tokens of a sequence.
"""

from collections.abc import Mapping
from typing import Any

import attrs
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import Fraction, NonNegativeFloat, PositiveFloat, config
from axcore.errors import ConfigError
from axcore.layers import whole_rows
from axcore.module import NATS_A_TOKEN, BatchSpec, Module, ParamSpec, functional
from axcore.module.context import current_context
from axcore.tasks.task import Task, second_models

REFERENCE = "reference"
"""Where the frozen copy is in the state."""


class ReferenceTask(Task):
    """Keeps a frozen copy of the parameters that are trained; the model shares all others with it.

    With adapters that is a copy of the adapters alone.
    """

    def kept_specs(self, specs: dict[str, Any]) -> dict[str, Any]:
        """Return the specs of the copy."""

        def kept(spec: ParamSpec) -> ParamSpec:
            return attrs.evolve(spec, path=(REFERENCE, *spec.path), is_frozen=True)

        return {**super().kept_specs(specs), REFERENCE: _trained(specs, specs, kept)}

    # Copies: the step donates the state, and a buffer cannot be donated under two names.
    def kept_state(self, state: dict[str, Any], specs: dict[str, Any]) -> dict[str, Any]:
        """Return the copy."""
        return {**super().kept_state(state, specs), REFERENCE: _trained(specs, state, jnp.copy)}

    def reference(self, method: str, *args: Any) -> Any:
        """Return what a method of the model returns with the first parameters; no gradient.

        It uses the random numbers that the model's own first call samples: dropout and stochastic
        rounding are the same in both, so that a model that was not trained yet equals its
        reference.
        """
        context = current_context("calling the reference")
        state = dict(context.state)
        copy = state.pop(REFERENCE)
        for name in second_models(self):
            del state[name]
        # Only the copy differs: frozen parameters are shared, so
        # a reference of adapters costs as much as the adapters.
        whole = jax.lax.stop_gradient(_over(state, copy))
        model: Module = self.model
        # The module's own key rather than a stream: the
        # reference is to sample what the model's first call samples.
        key = context.key() if context.has_key else None
        result, _ = functional(model, whole, *args, method=method, rng=key, training=self.training)
        return jax.lax.stop_gradient(result)


def _trained(specs: Mapping[str, Any], tree: Mapping[str, Any], of: Any) -> dict[str, Any]:
    """Return the leaves of a tree that are trained, by a function; empty dicts are left out."""
    found: dict[str, Any] = {}
    for name, spec in specs.items():
        if isinstance(spec, ParamSpec):
            if spec.is_trainable:
                found[name] = of(tree[name])
        elif below := _trained(spec, tree[name], of):
            found[name] = below
    return found


def _over(state: Mapping[str, Any], some: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with some of its leaves in the place of its own."""
    return {
        name: (_over(leaf, some[name]) if isinstance(leaf, Mapping) else some[name])
        if name in some
        else leaf
        for name, leaf in state.items()
    }


BATCH = ("tokens", "targets", "token_mask", "loss_weights", "row_weights")
"""The arrays of a batch, as `axcore.data.PreferenceData` makes them."""


@attrs.frozen
class Answers:
    """The log probabilities that a model gives the answers of a batch.

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
        extra_arrays: Arrays of a batch that it reads in addition to `BATCH`.
        has_reference: Whether it compares with the model before training.
        loss_unit: The unit of its loss.
    """

    extra_arrays: tuple[str, ...] = ()
    has_reference: bool = True
    loss_unit: str = "a pair"

    def row_losses(
        self, batch: Mapping[str, Array], policy: Answers, reference: Answers | None
    ) -> Float[Array, " batch"]:
        """Return the loss of each row.

        Args:
            batch: The batch.
            policy: What the model says.
            reference: What it said before training; None for objectives without.
        """
        raise NotImplementedError(f"{type(self).__qualname__} has no row_losses")

    def forward(self, batch: Mapping[str, Array]) -> None:
        """Add the mean over rows of their losses, by the name `preference`."""
        # Answers of a row are rows to the model, which knows nothing of pairs.
        tokens, targets, token_mask = (_flat(batch[name]) for name in BATCH[:3])
        inputs = tokens, targets, whole_rows(tokens, token_mask)
        model: Any = self.model  # one with `log_probs`, as `CausalLM` has
        policy = _answers(model.log_probs(*inputs), batch)
        reference = None
        if self.has_reference:
            reference = _answers(self.reference("log_probs", *inputs), batch)
        weights = batch["row_weights"]
        losses = self.row_losses(batch, policy, reference)
        self.add_loss("preference", jnp.sum(losses * weights), jnp.sum(weights))

    def add_reward_measures(
        self, rewards: Float[Array, "batch 2"], weights: Float[Array, " batch"]
    ) -> None:
        """Report by how much the chosen answer is ahead, and in what share of rows it is."""
        add_reward_measures(self, rewards, weights)

    def metric_units(self) -> Mapping[str, str]:
        """Return the unit of the loss, and that the accuracy is a share of pairs."""
        return {"loss": self.loss_unit, "reward_accuracy": "of pairs"}

    def kept_specs(self, specs: dict[str, object]) -> dict[str, object]:
        """Return the specs of the copy, for objectives with a reference."""
        if self.has_reference:
            return super().kept_specs(specs)
        return Task.kept_specs(self, specs)

    def kept_state(self, state: dict[str, object], specs: dict[str, object]) -> dict[str, object]:
        """Return the copy, for objectives with a reference."""
        if self.has_reference:
            return super().kept_state(state, specs)
        return Task.kept_state(self, state, specs)

    def check_batch(self, batch: BatchSpec) -> None:
        """Check that batches are of labelled answers, in tokens of the model.

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
        check_vocabulary(self.model, batch)


def add_reward_measures(
    task: Task, rewards: Float[Array, "batch 2"], weights: Float[Array, " batch"]
) -> None:
    """Report of a task by how much the chosen answer is ahead, and in what share of rows it is."""
    margin = rewards[:, 0] - rewards[:, 1]
    count = jnp.sum(weights)
    task.add_measure("reward_margin", jnp.sum(margin * weights), count)
    task.add_measure("reward_accuracy", jnp.sum(jnp.where(margin > 0, weights, 0)), count)


def check_vocabulary(model: Module, batch: BatchSpec) -> None:
    """Check that a model has room for each token of a batch.

    Raises:
        ConfigError: It has not.
    """
    cfg: Any = model.config
    size, num_tokens = cfg.vocab_size, batch.arrays["tokens"].num_values
    if size < num_tokens:
        raise ConfigError(
            f"vocab_size is {size}, but the tokenizer has {num_tokens} tokens",
            where="model.vocab_size",
            hint=f"--set model.vocab_size={num_tokens}",
        )


def _flat(array: Array) -> Array:
    """Return rows `[B S, T]` of `[B, S, T]`."""
    return array.reshape(-1, array.shape[-1])


def _answers(log_probs: Float[Array, "rows time"], batch: Mapping[str, Array]) -> Answers:
    weights_BST = batch["loss_weights"]
    log_probs_BST = log_probs.reshape(weights_BST.shape)
    # 0 times minus infinity is nan, and a token that does not count may have that probability.
    chosen = jnp.where(weights_BST != 0, log_probs_BST * weights_BST, 0)
    return Answers(jnp.sum(chosen, axis=-1), jnp.sum(weights_BST, axis=-1))


class DPO(PreferenceTask):
    """`-log sigmoid(beta (r_chosen - r_rejected))`, r the log-ratio of model and reference.

    Source: Rafailov et al. 2023, arXiv:2305.18290, eq. 7; Mitchell 2023, "A note on DPO with noisy
    preferences", eq. 3, for smoothed labels.
    """

    @config
    class Config(PreferenceTask.Config):
        """Describes `DPO`.

        Args:
            beta: How much it costs to go away from the reference.
            label_smoothing: The share of the judgements that are wrong.
        """

        beta: PositiveFloat = 0.1
        label_smoothing: Fraction = 0.0

    def row_losses(
        self, batch: Mapping[str, Array], policy: Answers, reference: Answers | None
    ) -> Float[Array, " batch"]:
        """Return the loss of each pair."""
        assert reference is not None, "it has one"
        cfg = self.config
        rewards = cfg.beta * (policy.log_probs - reference.log_probs)
        self.add_reward_measures(rewards, batch["row_weights"])
        margin = rewards[:, 0] - rewards[:, 1]
        smooth = cfg.label_smoothing
        log_sigmoid = jax.nn.log_sigmoid
        return -(1 - smooth) * log_sigmoid(margin) - smooth * log_sigmoid(-margin)


class IPO(PreferenceTask):
    """`(r_chosen - r_rejected - 1 / (2 beta))^2`, r the log-ratio of model and reference.

    Source: Azar et al. 2023, arXiv:2310.12036, eq. 17.
    Differs: Log-ratios are means over the tokens of an answer, as TRL has them, so that beta means
    the same for answers of any length.
    """

    @config
    class Config(PreferenceTask.Config):
        """Describes `IPO`.

        Args:
            beta: How much it costs to go away from the reference, the paper's tau.
        """

        beta: PositiveFloat = 0.1

    def row_losses(
        self, batch: Mapping[str, Array], policy: Answers, reference: Answers | None
    ) -> Float[Array, " batch"]:
        """Return the loss of each pair."""
        assert reference is not None, "it has one"
        ratios = policy.mean_log_probs - reference.mean_log_probs
        self.add_reward_measures(self.config.beta * ratios, batch["row_weights"])
        return (ratios[:, 0] - ratios[:, 1] - 1 / (2 * self.config.beta)) ** 2


class KTO(PreferenceTask):
    """`w (1 - sigmoid(beta (r - z)))` of good answers, `w (1 - sigmoid(beta (z - r)))` of others.

    r is the log-ratio of model and reference; z, without a gradient, the mean over a batch of that
    of answers to other prompts, and 0 at least.

    Source: Ethayarajh et al. 2024, arXiv:2402.01306, eq. 8.
    Differs: The other answer is that of the next conversation of the source. With micro-batches z
    is that of each of them.
    """

    extra_arrays = ("is_good",)
    loss_unit = "an answer"

    @config
    class Config(PreferenceTask.Config):
        """Describes `KTO`.

        Args:
            beta: How much it costs to go away from the reference.
            good_weight: Weight w of good answers.
            bad_weight: Weight w of the others.
        """

        beta: PositiveFloat = 0.1
        good_weight: NonNegativeFloat = 1.0
        bad_weight: NonNegativeFloat = 1.0

    def row_losses(
        self, batch: Mapping[str, Array], policy: Answers, reference: Answers | None
    ) -> Float[Array, " batch"]:
        """Return the loss of each labelled answer."""
        assert reference is not None, "it has one"
        cfg, weights, is_good = self.config, batch["row_weights"], batch["is_good"]
        ratios = policy.log_probs - reference.log_probs
        other = jnp.sum(ratios[:, 1] * weights) / jnp.maximum(jnp.sum(weights), 1)
        # No gradient through z, and never below 0: it estimates a divergence.
        z = jax.lax.stop_gradient(jnp.maximum(other, 0))
        reward = cfg.beta * (ratios[:, 0] - z)
        good, bad = is_good * weights, (1 - is_good) * weights
        self.add_measure("reward_good", jnp.sum(reward * good), jnp.sum(good))
        self.add_measure("reward_bad", jnp.sum(reward * bad), jnp.sum(bad))
        self.add_measure("divergence", z * jnp.sum(weights), jnp.sum(weights))
        sign = 2 * is_good - 1
        weight = cfg.bad_weight + (cfg.good_weight - cfg.bad_weight) * is_good
        return weight * (1 - jax.nn.sigmoid(sign * reward))


_SMALLEST = 2.0**-23
"""The distance of float32 numbers at 1."""


class ORPO(PreferenceTask):
    """The cross-entropy of chosen answers, and `-beta log sigmoid` of the log odds ratio.

    The odds of an answer are `p / (1 - p)`, p the geometric mean of its tokens' probabilities.

    Source: Hong et al. 2024, arXiv:2403.07691, eq. 6 and 7.
    """

    has_reference = False

    @config
    class Config(PreferenceTask.Config):
        """Describes `ORPO`.

        Args:
            beta: Weight of the odds ratio, the paper's lambda.
        """

        beta: NonNegativeFloat = 0.1

    def metric_units(self) -> Mapping[str, str]:
        """Return nats a token for the cross-entropy of answers, in addition to what all have."""
        return {**super().metric_units(), "loss/cross_entropy": NATS_A_TOKEN}

    def row_losses(
        self, batch: Mapping[str, Array], policy: Answers, reference: Answers | None
    ) -> Float[Array, " batch"]:
        """Return the loss of the odds ratio of each pair, and add the cross-entropy."""
        weights = batch["row_weights"]
        chosen, num_tokens = policy.log_probs[:, 0], policy.num_tokens[:, 0]
        self.add_loss("cross_entropy", -jnp.sum(chosen * weights), jnp.sum(num_tokens * weights))
        mean = policy.mean_log_probs
        self.add_reward_measures(self.config.beta * mean, weights)
        is_real = policy.num_tokens > 0
        # Both branches are computed, and at a mean of 0 the second has no finite gradient.
        log_odds = jnp.where(is_real, mean - _log1mexp(jnp.where(is_real, mean, -1.0)), 0)
        return -self.config.beta * jax.nn.log_sigmoid(log_odds[:, 0] - log_odds[:, 1])


def _log1mexp(x: Array) -> Array:
    """Return `log(1 - exp(x))` of numbers below 0; of 0, that of the largest number below."""
    x = jnp.minimum(x, -_SMALLEST)
    is_near = x > -jnp.log(2.0)
    near = jnp.log(-jnp.expm1(jnp.where(is_near, x, -1.0)))
    far = jnp.log1p(-jnp.exp(jnp.where(is_near, -1.0, x)))
    return jnp.where(is_near, near, far)


class SimPO(PreferenceTask):
    """`-log sigmoid(beta (p_chosen - p_rejected) - gamma)`, p the mean log-probability of a token.

    Source: Meng et al. 2024, arXiv:2405.14734, eq. 6.
    """

    has_reference = False

    @config
    class Config(PreferenceTask.Config):
        """Describes `SimPO`.

        Args:
            beta: Scale of the rewards.
            gamma: By how much the chosen answer's reward should be ahead.
        """

        beta: PositiveFloat = 2.0
        gamma: NonNegativeFloat = 1.0

    def row_losses(
        self, batch: Mapping[str, Array], policy: Answers, reference: Answers | None
    ) -> Float[Array, " batch"]:
        """Return the loss of each pair."""
        rewards = self.config.beta * policy.mean_log_probs
        self.add_reward_measures(rewards, batch["row_weights"])
        return -jax.nn.log_sigmoid(rewards[:, 0] - rewards[:, 1] - self.config.gamma)
