"""`KTO`: Kahneman-Tversky optimization, on answers that were labelled one by one."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import NonNegativeFloat, PositiveFloat, config
from axcore.tasks.preference_task import Answers, PreferenceTask


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
        """Returns the loss of each labelled answer."""
        assert reference is not None, "it has one"
        cfg, weights, is_good = self.config, batch["row_weights"], batch["is_good"]
        ratios = policy.log_probs - reference.log_probs
        other = jnp.sum(ratios[:, 1] * weights) / jnp.maximum(jnp.sum(weights), 1)
        z = jax.lax.stop_gradient(jnp.maximum(other, 0))
        reward = cfg.beta * (ratios[:, 0] - z)
        good, bad = is_good * weights, (1 - is_good) * weights
        self.add_measure("reward_good", jnp.sum(reward * good), jnp.sum(good))
        self.add_measure("reward_bad", jnp.sum(reward * bad), jnp.sum(bad))
        self.add_measure("divergence", z * jnp.sum(weights), jnp.sum(weights))
        sign = 2 * is_good - 1
        weight = cfg.bad_weight + (cfg.good_weight - cfg.bad_weight) * is_good
        return weight * (1 - jax.nn.sigmoid(sign * reward))
