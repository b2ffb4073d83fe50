"""`ModelReward`: the score of a reward model that a run trained."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from axcore.config import REQUIRED, PositiveInt, config
from axcore.rewards.reward import BatchReward, ScoreRequest

if TYPE_CHECKING:
    from axcore.runs import Run

_MESSAGES = "messages"
"""The field of prompts that are conversations; see `axcore.rollouts.PromptFiles`."""


class ModelReward(BatchReward):
    """The score of a model that was trained on preferences, by `axcore train reward-model`.

    It runs in the trainer's process and on its devices: the weights stay in their memory next to
    the policy's, and each completion costs one forward pass of the model, many in a call. The model
    has its own tokenizer and chat template; a prompt that is a text is a message of the user.
    """

    @config
    class Config(BatchReward.Config):
        """Describes a `ModelReward`.

        Args:
            path: The run directory.
            batch_size: Completions that are scored at once.
        """

        path: str = REQUIRED
        batch_size: PositiveInt = 16

    config: Config

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self._opened: Run | None = None

    def check(self) -> None:
        """Check that the run is there, and that its model gives rewards.

        Raises:
            CheckpointError: It is not, or has no checkpoint.
            ConfigError: Its model writes text.
        """
        self._score([{_MESSAGES: _messages("?", "!", {})}])

    def score_all(self, requests: Sequence[ScoreRequest]) -> Sequence[float]:
        """Return the model's rewards, as it was trained to give them."""
        return self._score(
            [{_MESSAGES: _messages(one.prompt, one.completion, one.fields)} for one in requests]
        )

    def _score(self, conversations: Sequence[Mapping[str, Any]]) -> Sequence[float]:
        # Not at the top: whoever names rewards in a config needs no jax.
        from axcore.runs import load_run, reward_of

        if self._opened is None:
            self._opened = load_run(self.config.path)
        found = reward_of(self._opened, conversations, batch_size=self.config.batch_size)
        return [float(one) for one in found]


def _messages(prompt: str, completion: str, fields: Mapping[str, Any]) -> list[Any]:
    before = fields.get(_MESSAGES) or [{"role": "user", "content": prompt}]
    return [*before, {"role": "assistant", "content": completion}]
