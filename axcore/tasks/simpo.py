"""`SimPO`: preference optimization without a reference."""

from collections.abc import Mapping

import jax
from jaxtyping import Array, Float

from axcore.config import NonNegativeFloat, PositiveFloat, config
from axcore.tasks.preference_task import Answers, PreferenceTask


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
        """Returns the loss of each pair."""
        rewards = self.config.beta * policy.mean_log_probs
        self.add_reward_measures(rewards, batch["row_weights"])
        return -jax.nn.log_sigmoid(rewards[:, 0] - rewards[:, 1] - self.config.gamma)
