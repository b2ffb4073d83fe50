"""`IPO`: identity preference optimization."""

from collections.abc import Mapping

from jaxtyping import Array, Float

from axcore.config import PositiveFloat, config
from axcore.tasks.preference_task import Answers, PreferenceTask


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
        """Returns the loss of each pair."""
        assert reference is not None, "it has one"
        ratios = policy.mean_log_probs - reference.mean_log_probs
        self.add_reward_measures(self.config.beta * ratios, batch["row_weights"])
        return (ratios[:, 0] - ratios[:, 1] - 1 / (2 * self.config.beta)) ** 2
