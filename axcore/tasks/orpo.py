"""`ORPO`: odds ratio preference optimization, of a model that still learns to answer."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import NonNegativeFloat, config
from axcore.module import NATS_A_TOKEN
from axcore.tasks.preference_task import Answers, PreferenceTask

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
        """Returns nats a token for the cross-entropy of answers, beside what all have."""
        return {**super().metric_units(), "loss/cross_entropy": NATS_A_TOKEN}

    def row_losses(
        self, batch: Mapping[str, Array], policy: Answers, reference: Answers | None
    ) -> Float[Array, " batch"]:
        """Returns the loss of the odds ratio of each pair, and adds the cross-entropy."""
        weights = batch["row_weights"]
        chosen, num_tokens = policy.log_probs[:, 0], policy.num_tokens[:, 0]
        self.add_loss("cross_entropy", -jnp.sum(chosen * weights), jnp.sum(num_tokens * weights))
        mean = policy.mean_log_probs
        self.add_reward_measures(self.config.beta * mean, weights)
        is_real = policy.num_tokens > 0
        log_odds = jnp.where(is_real, mean - _log1mexp(jnp.where(is_real, mean, -1.0)), 0)
        return -self.config.beta * jax.nn.log_sigmoid(log_odds[:, 0] - log_odds[:, 1])


def _log1mexp(x: Array) -> Array:
    """Returns `log(1 - exp(x))` of numbers below 0; of 0, that of the largest number below."""
    x = jnp.minimum(x, -_SMALLEST)
    is_near = x > -jnp.log(2.0)
    near = jnp.log(-jnp.expm1(jnp.where(is_near, x, -1.0)))
    far = jnp.log1p(-jnp.exp(jnp.where(is_near, -1.0, x)))
    return jnp.where(is_near, near, far)
