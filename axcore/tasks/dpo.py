"""`DPO`: direct preference optimization."""

from collections.abc import Mapping

import jax
from jaxtyping import Array, Float

from axcore.config import Fraction, PositiveFloat, config
from axcore.tasks.preference_task import Answers, PreferenceTask


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
        """Returns the loss of each pair."""
        assert reference is not None, "it has one"
        cfg = self.config
        rewards = cfg.beta * (policy.log_probs - reference.log_probs)
        self.add_reward_measures(rewards, batch["row_weights"])
        margin = rewards[:, 0] - rewards[:, 1]
        smooth = cfg.label_smoothing
        log_sigmoid = jax.nn.log_sigmoid
        return -(1 - smooth) * log_sigmoid(margin) - smooth * log_sigmoid(-margin)
