"""Policy gradients on sampled completions: GRPO and its kin, as one task made of small choices.

A batch has the completions that a policy sampled and what each was worth; see
`axcore.rollouts.Rollouts`. `PolicyGradient` says how rewards become advantages, how far the policy
may go in an update, what a step away from the reference costs, and what the loss is a mean of.
GRPO, Dr. GRPO, DAPO, GSPO and RLOO are five settings of it.

Letters: B rows, T tokens of a row.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from axcore.config import (
    REQUIRED,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    config,
    find_config,
    update_config,
)
from axcore.errors import ConfigError, ModuleError
from axcore.layers import Dropout, TokenInfo, whole_rows
from axcore.layers.routes import RECORDED_ROUTES, REPLAYED_ROUTES, Routes, routes_of_token
from axcore.module import BatchSpec, ModelFlops, entry
from axcore.tasks.distillation import check_same_tokens, flops_with_teacher
from axcore.tasks.policy_losses import (
    Advantage,
    Clip,
    KLPenalty,
    SamplerCorrection,
    advantages,
    at_level,
    clipped_losses,
    group_statistics,
    kl_estimates,
    masked,
    sampler_weights,
)
from axcore.tasks.preference import REFERENCE, ReferenceTask
from axcore.tasks.task import FrozenModel, Task

ROLLOUT_ARRAYS = (
    "tokens",
    "targets",
    "token_mask",
    "loss_weights",
    "sampler_log_probs",
    "rewards",
    "group",
    "group_mean",
    "group_std",
    "group_size",
    "batch_std",
    "row_weights",
)
"""The arrays of every batch of rollouts."""

ROUTES = "routes"
"""The array of batches that has the experts of each token, `[batch, time, routers, choices]`."""

NUM_ROUTERS = "num_routers"
"""How many routers ran while routes were recorded, in each row; no batch has it."""

OLD_LOG_PROBS = "old_log_probs"
"""The array of batches that are trained on after the policy has changed."""

REFERENCE_LOG_PROBS = "reference_log_probs"
"""The array of batches whose rewards have a penalty of their distance from the reference."""

ADVANTAGES = "advantages"
"""The array of batches whose tokens are judged on the host."""

REWARD_PREFIX = "reward."
"""What the arrays of single rewards begin with."""

FAILED_PREFIX = "failed."
"""What the arrays begin with that are 1 where a reward failed."""


@attrs.frozen
class TokenArray:
    """An array `[batch, time, ...]` that a task needs in a batch of rollouts.

    Args:
        shape: Its shape after the first two dimensions.
        dtype: Its dtype.
    """

    shape: tuple[int, ...] = ()
    dtype: str = "float32"


class PolicyGradient(ReferenceTask):
    """`-min(r A, clip(r) A)` of each sampled token, r the ratio to the policy that sampled it.

    Attributes:
        reads_rewards: Whether completions need a reward.
        penalizes_rewards: Whether `kl` comes off the rewards, rather than being a loss of its own.
    """

    @config
    class Config(Task.Config):
        """Describes a `PolicyGradient`.

        Args:
            advantage: How rewards become advantages.
            clip: How far the policy may go.
            kl: What it costs to go away from the model before training.
            mean_over: What the loss is a mean of: `sequence` is a mean over completions of means
                over their tokens; `token` a mean over all tokens; `constant` a mean over
                completions of sums over tokens, divided by `max_tokens`.
            max_tokens: What `constant` divides by; None takes the length of a row.
            entropy_bonus: What a nat of entropy, in the mean over sampled tokens, takes off the
                loss.
            temperature: What the sampler divided logits by.
            sampler: How losses are weighted where the sampler's probabilities are not the
                trainer's.
            routing_replay: Whether updates send each token to the experts that the weights which
                sampled it chose, when old log-probabilities were computed. Without, an update may
                choose others, and ratios are then of two different mixtures.

        Source: Zheng et al. 2025, arXiv:2507.18071, section 5.3, for `routing_replay`.
        """

        advantage: Advantage = Advantage()
        clip: Clip = Clip()
        kl: KLPenalty = KLPenalty()
        mean_over: Literal["sequence", "token", "constant"] = "sequence"
        max_tokens: PositiveInt | None = None
        entropy_bonus: NonNegativeFloat = 0.0
        temperature: PositiveFloat = 1.0
        sampler: SamplerCorrection = SamplerCorrection()
        routing_replay: bool = False

    config: Config
    reads_rewards = True
    penalizes_rewards = False
    watched_metrics = ("reward", "loss/kl", "entropy", "clip_fraction", "completion_tokens")

    @property
    def records_reference(self) -> bool:
        """Whether `record` returns the log-probabilities that tokens had before training."""
        return self.penalizes_rewards and bool(self.config.kl.coefficient)

    @property
    def always_records(self) -> bool:
        """Whether `record` is needed even where the weights that sampled are those that train."""
        return self.config.routing_replay or self.records_reference

    def recorded_arrays(self) -> Mapping[str, TokenArray]:
        """Return what `record` returns, by name."""
        found = {OLD_LOG_PROBS: TokenArray(), **self._recorded_routes()}
        return {**found, REFERENCE_LOG_PROBS: TokenArray()} if self.records_reference else found

    def finished_arrays(self) -> Mapping[str, TokenArray]:
        """Return what `finish_batch` adds, by name."""
        return {}

    @entry
    def record(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Return what the weights that sampled say about each token; updates compare with it.

        Args:
            batch: `tokens`, `targets` and `token_mask`, `[batch, time]` each.
        """
        info = whole_rows(batch["tokens"], batch["token_mask"])
        with self.recording_routes(batch) as routes:
            log_probs_BT, _ = self.predictions(batch, info)
        return {OLD_LOG_PROBS: log_probs_BT, **routes, **self.recorded_reference(batch)}

    def recorded_reference(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Return what the model before training says, where rewards have a penalty of it."""
        if not self.records_reference:
            return {}
        return {REFERENCE_LOG_PROBS: self.reference_log_probs(batch)}

    def recorded_with(self) -> tuple[str, ...]:
        """Return the names of what the task keeps in the state, and `record` reads."""
        return (REFERENCE,) if self.records_reference else ()

    def finish_batch(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return a batch with what depends on all of its rows, on the host.

        A step may see a part of the rows at a time.
        """
        return batch

    @contextmanager
    def recording_routes(self, batch: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
        """Yield a dict that has the routes of a block's call of the model after it, if replayed."""
        found: dict[str, Array] = {}
        if not self.config.routing_replay:
            yield found
            return
        token = routes_of_token(self.model)
        routes = Routes.of(jnp.zeros((*batch["tokens"].shape, *token.shape), token.dtype))
        with self.with_shared(RECORDED_ROUTES, routes):
            yield found
            routes = self.get_shared(RECORDED_ROUTES)
        found |= {ROUTES: routes.experts, NUM_ROUTERS: routes.router}

    def check_recorded(self, recorded: Mapping[str, np.ndarray]) -> None:
        """Check what `record` returned, on the host.

        Raises:
            ModuleError: Other routers ran than were counted: choices would go to other layers.
        """
        if not self.config.routing_replay:
            return
        num_routers, num_ran = recorded[ROUTES].shape[2], int(recorded[NUM_ROUTERS][0])
        # Fewer may run than there are, as of heads that only pre-training has: the same ones run in
        # every update. Of more, two would share a place.
        if not 0 < num_ran <= num_routers:
            raise ModuleError(
                f"the model has {num_routers} routers, but {num_ran} ran in one call: a layer "
                "that runs its router several times cannot be replayed",
                where="task.routing_replay",
                hint="--set task.routing_replay=false",
            )

    @contextmanager
    def replaying_routes(self, batch: Mapping[str, Array]) -> Iterator[None]:
        """Send tokens to the experts that the batch names, in a block's call of the model."""
        if not self.config.routing_replay:
            yield
            return
        with self.with_shared(REPLAYED_ROUTES, Routes.of(batch[ROUTES])):
            yield

    def _recorded_routes(self) -> dict[str, TokenArray]:
        if not self.config.routing_replay:
            return {}
        token = routes_of_token(self.model)
        return {ROUTES: TokenArray(token.shape, str(token.dtype))}

    def predictions(self, batch: Mapping[str, Array], info: TokenInfo) -> tuple[Array, Array]:
        """Return log-probability and entropy of each token."""
        model: Any = self.model  # one with `log_probs_and_entropies`, as `CausalLM` has
        found: tuple[Array, Array] = model.log_probs_and_entropies(
            batch["tokens"], batch["targets"], info, temperature=self.config.temperature
        )
        return found

    def forward(self, batch: Mapping[str, Array]) -> None:
        """Add the loss by the name `policy`, the penalty as `kl`, and what is measured of both."""
        cfg = self.config
        info = whole_rows(batch["tokens"], batch["token_mask"])
        # 0 for what the policy did not write, and for rows without a reward.
        mask_BT = batch["loss_weights"] * batch["row_weights"][:, None]
        with self.replaying_routes(batch):
            found = self.predictions(batch, info)
        log_probs_BT, entropies_BT = (masked(one, mask_BT) for one in found)
        current_BT = jax.lax.stop_gradient(log_probs_BT)
        # Where the policy has not changed since, its own log-probabilities are the old ones: the
        # ratio is 1 exactly, whatever the sampler's rounding.
        old_BT = masked(batch.get(OLD_LOG_PROBS, current_BT), mask_BT)
        sampler_BT = masked(batch["sampler_log_probs"], mask_BT)
        advantages_BT = self.token_advantages(batch, old_BT, mask_BT)
        log_ratio_BT = at_level(log_probs_BT - old_BT, mask_BT, cfg.clip.level)
        losses_BT, is_clipped_BT = clipped_losses(log_ratio_BT, advantages_BT, cfg.clip)
        gap_BT = jax.lax.stop_gradient(old_BT - sampler_BT)
        losses_BT *= sampler_weights(cfg.sampler, gap_BT, mask_BT)
        self._add_mean("policy", losses_BT, mask_BT)
        if cfg.entropy_bonus:
            # A mean over tokens whatever `mean_over` is: of a sum, longer answers would have more.
            total = -jnp.sum(entropies_BT * mask_BT)
            self.add_loss("entropy_bonus", total, jnp.sum(mask_BT), scale=cfg.entropy_bonus)
        if cfg.kl.coefficient:
            self.penalize(batch, log_probs_BT, log_ratio_BT, mask_BT)
        self._measure(batch, mask_BT, entropies_BT, is_clipped_BT, gap_BT)

    def token_advantages(
        self, batch: Mapping[str, Array], old_BT: Array, mask_BT: Array
    ) -> Float[Array, "batch time"]:
        """Return how much better each token is than what was expected; no gradient.

        Args:
            batch: The batch.
            old_BT: Log-probabilities of the policy that sampled.
            mask_BT: 1 for tokens that count.
        """
        found_B = advantages(self.config.advantage, batch)
        return jnp.broadcast_to(found_B[:, None], mask_BT.shape)

    def penalize(
        self, batch: Mapping[str, Array], log_probs_BT: Array, log_ratio_BT: Array, mask_BT: Array
    ) -> None:
        """Add what it costs to be away from the model before training, or measure how far it is."""
        cfg = self.config
        if self.records_reference:
            gap_BT = masked(batch[OLD_LOG_PROBS] - batch[REFERENCE_LOG_PROBS], mask_BT)
            self.add_measure("reference_kl", jnp.sum(gap_BT), jnp.sum(mask_BT))
            return
        kl_BT = kl_estimates(
            log_probs_BT - masked(self.reference_log_probs(batch), mask_BT), cfg.kl.form
        )
        if cfg.kl.is_weighted_by_ratio:
            kl_BT *= jnp.exp(log_ratio_BT)
        self._add_mean("kl", kl_BT, mask_BT, scale=cfg.kl.coefficient)

    def reference_log_probs(self, batch: Mapping[str, Array]) -> Float[Array, "batch time"]:
        """Return the log-probabilities that tokens had before training."""
        info = whole_rows(batch["tokens"], batch["token_mask"])
        inputs = batch["tokens"], batch["targets"], info, self.config.temperature
        found_BT: Array = self.reference("log_probs_and_entropies", *inputs)[0]
        return found_BT

    def _add_mean(self, name: str, values_BT: Array, mask_BT: Array, *, scale: float = 1.0) -> None:
        """Add a mean of tokens' losses, as `mean_over` says."""
        cfg = self.config
        sums_B, counts_B = jnp.sum(values_BT * mask_BT, axis=1), jnp.sum(mask_BT, axis=1)
        if cfg.mean_over == "token":
            total, weight = jnp.sum(sums_B), jnp.sum(counts_B)
        else:
            length = counts_B if cfg.mean_over == "sequence" else cfg.max_tokens or mask_BT.shape[1]
            total = jnp.sum(sums_B / jnp.maximum(length, 1))
            weight = jnp.sum(jnp.any(mask_BT > 0, axis=1).astype(jnp.float32))
        self.add_loss(name, total, weight, scale=scale)

    def _measure(
        self,
        batch: Mapping[str, Array],
        mask_BT: Array,
        entropies_BT: Array,
        is_clipped_BT: Array,
        gap_BT: Array,
    ) -> None:
        weights_B, num_tokens = batch["row_weights"], jnp.sum(mask_BT)
        num_rows = jnp.sum(weights_B)
        self.add_measure("reward", jnp.sum(batch["rewards"] * weights_B), num_rows)
        # Of all completions, those that weigh nothing included; rows of padding have no tokens.
        is_sampled_B = jnp.any(batch["loss_weights"] > 0, axis=1).astype(jnp.float32)
        for name in (one for one in batch if one.startswith(REWARD_PREFIX)):
            failed_B = batch[FAILED_PREFIX + name.removeprefix(REWARD_PREFIX)]
            self.add_measure(name, jnp.sum(batch[name]), jnp.sum(is_sampled_B - failed_B))
        for name in (one for one in batch if one.startswith(FAILED_PREFIX)):
            self.add_measure(name, jnp.sum(batch[name]), jnp.sum(is_sampled_B))
        self.add_measure("completion_tokens", num_tokens, num_rows)
        self.add_measure("entropy", jnp.sum(entropies_BT * mask_BT), num_tokens)
        self.add_measure("clip_fraction", jnp.sum(is_clipped_BT * mask_BT), num_tokens)
        self.add_measure("sampler_gap", jnp.sum(jnp.abs(gap_BT) * mask_BT), num_tokens)
        # Of completions that others of the same prompt are compared with: an evaluation has none.
        compared_B = jnp.where(batch["group_size"] > 1, weights_B, 0)
        equal_B = jnp.where(batch["group_std"] == 0, compared_B, 0)
        self.add_measure("equal_groups", jnp.sum(equal_B), jnp.sum(compared_B))

    def metric_units(self) -> Mapping[str, str]:
        """Return the units of what is measured."""
        nats = dict.fromkeys(("entropy", "sampler_gap", "loss/kl", "reference_kl"), "nats")
        shares = {"clip_fraction": "of tokens", "equal_groups": "of completions"}
        return {"loss": "a completion", "completion_tokens": "tokens", **nats, **shares}

    def kept_specs(self, specs: dict[str, Any]) -> dict[str, Any]:
        """Return the specs of the copy, where a step away from it costs something."""
        if self.config.kl.coefficient:
            return super().kept_specs(specs)
        return Task.kept_specs(self, specs)

    def kept_state(self, state: dict[str, Any], specs: dict[str, Any]) -> dict[str, Any]:
        """Return the copy, where a step away from it costs something."""
        if self.config.kl.coefficient:
            return super().kept_state(state, specs)
        return Task.kept_state(self, state, specs)

    def check_batch(self, batch: BatchSpec) -> None:
        """Check that batches are of rollouts, in tokens of the model.

        Raises:
            ConfigError: They are not, or they have arrays that would be passed over.
        """
        name, arrays = type(self).__qualname__, batch.arrays
        missing = [one for one in ROLLOUT_ARRAYS if one not in arrays]
        known = (*ROLLOUT_ARRAYS, *self.recorded_arrays(), *self.finished_arrays())
        of_rewards = (REWARD_PREFIX, FAILED_PREFIX)
        unread = [one for one in arrays if one not in known and not one.startswith(of_rewards)]
        if missing or unread:
            what = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unread)} too"
            raise ConfigError(
                f"{name} is trained on rollouts, and a batch {what}",
                where="data",
                hint="train it on axcore.rollouts.Rollouts, as `axcore train grpo` does",
            )
        self._check_dropout()
        if self.config.routing_replay and not routes_of_token(self.model).shape[0]:
            raise ConfigError(
                "there are no routes to replay: the model has no router",
                where="task.routing_replay",
                hint="--set task.routing_replay=false",
            )
        cfg: Any = self.model.config
        size, num_tokens = cfg.vocab_size, arrays["tokens"].num_values
        if num_tokens is not None and size < num_tokens:
            raise ConfigError(
                f"vocab_size is {size}, but the tokenizer has {num_tokens} tokens",
                where="model.vocab_size",
                hint=f"--set model.vocab_size={num_tokens}",
            )

    def _check_dropout(self) -> None:
        """Refuse dropout: the sampler has none, and ratios would be those of masks."""
        for found in find_config(self.config.model, Dropout.Config):
            rate = getattr(found.node, "rate", 0.0)
            if rate:
                raise ConfigError(
                    f"{type(self).__qualname__} compares probabilities with those of the sampler, "
                    f"which drops nothing, and the model has a dropout of {rate}",
                    where=f"model.{found.path}.rate",
                    hint=f"--set model.{found.path}.rate=0",
                )


@config
class RoutingReplay:
    """Replays the experts that the weights which sampled chose, in every update on a rollout."""

    def apply(self, cfg: Any, hardware: Any) -> Any:
        """Return a trainer's config whose task replays them."""
        return update_config(cfg, {"task.routing_replay": True})


class GRPO(PolicyGradient):
    """Group relative policy optimization: rewards compared within the completions of a prompt.

    Source: Shao et al. 2024, arXiv:2402.03300, eq. 3.
    Differs: A penalty is weighted by the ratio unless `kl.is_weighted_by_ratio` is false.
    """


class DrGRPO(PolicyGradient):
    """GRPO without its biases towards long wrong answers and towards easy or hard prompts.

    Source: Liu et al. 2025, arXiv:2503.20783, section 3.2.
    """

    @config
    class Config(PolicyGradient.Config):
        """Describes `DrGRPO`."""

        advantage: Advantage = Advantage(scale="none")
        mean_over: Literal["sequence", "token", "constant"] = "constant"


class DAPO(PolicyGradient):
    """Decoupled clip: the ratio may grow further than it may fall, and each token counts alike.

    Dynamic sampling is `data.max_sampling_rounds`, and the penalty of long answers is the reward
    `overlong`.

    Source: Yu et al. 2025, arXiv:2503.14476, eq. 8.
    """

    @config
    class Config(PolicyGradient.Config):
        """Describes `DAPO`."""

        clip: Clip = Clip(high=0.28)
        mean_over: Literal["sequence", "token", "constant"] = "token"


class GSPO(PolicyGradient):
    """Group sequence policy optimization: one ratio for each completion.

    Source: Zheng et al. 2025, arXiv:2507.18071, eq. 5 and section 5.1 for the clip.
    """

    @config
    class Config(PolicyGradient.Config):
        """Describes `GSPO`."""

        clip: Clip = Clip(low=3e-4, high=4e-4, level="sequence")


class RLOO(PolicyGradient):
    """REINFORCE with the mean of the prompt's other completions as baseline.

    A completion is one action: its ratio is the product of its tokens', and the gradient of the
    first update is its advantage times that of its log-probability.

    A penalty (`kl`) comes off the reward of a completion before completions are compared.

    Source: Ahmadian et al. 2024, arXiv:2402.14740, section 3.2.
    """

    @config
    class Config(PolicyGradient.Config):
        """Describes `RLOO`."""

        advantage: Advantage = Advantage(baseline="leave_one_out", scale="none")
        clip: Clip = Clip(level="product")
        kl: KLPenalty = KLPenalty(form="k1")

    penalizes_rewards = True
    watched_metrics = ("reward", "reference_kl", "entropy", "clip_fraction", "completion_tokens")

    def finished_arrays(self) -> Mapping[str, TokenArray]:
        """Return the advantages, where rewards have a penalty."""
        return {ADVANTAGES: TokenArray()} if self.records_reference else {}

    def finish_batch(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return a batch with advantages of rewards less the penalty, where there is one."""
        if not self.records_reference:
            return batch
        cfg, weights_B = self.config, batch["row_weights"]
        mask_BT = batch["loss_weights"] * weights_B[:, None]
        rewards_B = batch["rewards"] - token_penalties(batch, mask_BT, cfg.kl).sum(axis=1)
        compared = group_statistics(rewards_B, weights_B, batch["group"])
        penalized: Any = {**batch, **compared, "rewards": rewards_B}
        found_B = advantages(cfg.advantage, penalized)
        found_BT = np.broadcast_to(np.asarray(found_B, np.float32)[:, None], mask_BT.shape)
        return {**batch, ADVANTAGES: found_BT}

    def token_advantages(
        self, batch: Mapping[str, Array], old_BT: Array, mask_BT: Array
    ) -> Float[Array, "batch time"]:
        """Return the advantages that `finish_batch` made, or those of the rewards alone."""
        if self.records_reference:
            return batch[ADVANTAGES]
        return super().token_advantages(batch, old_BT, mask_BT)


def token_penalties(
    batch: Mapping[str, np.ndarray], mask_BT: np.ndarray, penalty: KLPenalty
) -> np.ndarray:
    """Return what the distance from the reference takes off the reward of each token, in float64.

    Args:
        batch: Has the log-probabilities of the policy that sampled, and of the reference.
        mask_BT: 1 for tokens that count.
        penalty: How the distance is estimated, and its weight.
    """
    gap_BT = np.where(mask_BT > 0, batch[OLD_LOG_PROBS] - batch[REFERENCE_LOG_PROBS], 0)
    estimates_BT = np.asarray(kl_estimates(jnp.asarray(gap_BT), penalty.form), np.float64)
    return penalty.coefficient * estimates_BT


class OnPolicyDistill(PolicyGradient):
    """Learns from a teacher at each token that the student itself samples; no reward is read.

    The advantage of a token is by how much the teacher's log-probability of it is above that of
    the policy that sampled it. Its mean is the divergence KL(student, teacher), which is measured
    as `reverse_kl`; a token answers for its own place alone.

    Source: Agarwal et al. 2024, arXiv:2306.13649, section 3; Lu and Thinking Machines Lab 2025,
        "On-policy distillation", for the advantage.
    """

    @config
    class Config(PolicyGradient.Config):
        """Describes `OnPolicyDistill`.

        Args:
            teacher: The model to learn from; it has the student's tokens.
        """

        teacher: FrozenModel.Config = REQUIRED
        mean_over: Literal["sequence", "token", "constant"] = "token"

    config: Config
    reads_rewards = False
    watched_metrics = ("reverse_kl", "loss/kl", "entropy", "clip_fraction", "completion_tokens")

    def setup(self, cfg: Any) -> None:
        """Build both models."""
        super().setup(cfg)
        self.teacher = cfg.teacher.build()

    def token_advantages(
        self, batch: Mapping[str, Array], old_BT: Array, mask_BT: Array
    ) -> Float[Array, "batch time"]:
        """Return the teacher's log-probabilities less those of the policy that sampled."""
        info = whole_rows(batch["tokens"], batch["token_mask"])
        inputs = batch["tokens"], batch["targets"], info, self.config.temperature
        taught_BT, _ = self.teacher("log_probs_and_entropies", *inputs)
        found_BT = masked(taught_BT, mask_BT) - old_BT
        self.add_measure("reverse_kl", -jnp.sum(found_BT * mask_BT), jnp.sum(mask_BT))
        return jax.lax.stop_gradient(found_BT)

    def metric_units(self) -> Mapping[str, str]:
        """Return the units of what is measured."""
        return {**super().metric_units(), "loss": "a token", "reverse_kl": "nats"}

    def flops_per_unit(self, batch: BatchSpec) -> ModelFlops | None:
        """Return what a token costs the student, and the teacher's forward pass."""
        return flops_with_teacher(self.model, self.teacher.model, batch)

    def check_batch(self, batch: BatchSpec) -> None:
        """Check that batches are of rollouts, and that both models have the same tokens.

        Raises:
            ConfigError: They are not, or they have not.
        """
        super().check_batch(batch)
        check_same_tokens(self.model, self.teacher.model)
