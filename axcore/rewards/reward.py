"""`Reward`: what a completion is worth, as a function of prompt, completion and fields."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import attrs

from axcore.config import Configurable, PositiveFloat, PositiveInt, config
from axcore.errors import DataError

ANSWER = "answer"
"""The field that the rewards for right answers read."""

COMPLETION_TOKENS = "completion_tokens"
"""The field that a prompt's record does not have: how many tokens the policy sampled."""

_LARGEST = 1e30
"""Sums and squares of such rewards are finite in float32."""


class Reward(Configurable, ABC):
    """Says what completions are worth.

    One that derives from this class runs in the trainer's process: it is a few lines that always
    end, such as a comparison of texts. Anything else derives from `WorkerReward`.
    """

    @config
    class Config(Configurable.Config["Reward"]):
        """Describes a reward.

        Args:
            weight: What it is multiplied by before rewards are added up; 0 only measures it.
        """

        weight: float = 1.0

    config: Config

    def check(self) -> None:
        """Check that this machine can compute it; called once, before a run begins.

        Raises:
            ConfigError: It cannot.
        """

    @abstractmethod
    def score(self, prompt: str, completion: str, fields: Mapping[str, Any]) -> float:
        """Return what a completion is worth, a finite number.

        It depends on its arguments alone, and not on what was scored before.

        Args:
            prompt: The prompt's text.
            completion: What the policy wrote, without the token that ends it.
            fields: The other fields of the prompt's record, and `completion_tokens`.
        """


class WorkerReward(Reward):
    """A reward that runs in processes of its own, each call under a time limit.

    Code of others, programs, patterns and requests belong here: what hangs, ends its process or
    takes all memory costs that completion its reward, and not the run.
    """

    @config
    class Config(Reward.Config):
        """Describes a reward that runs in processes of its own.

        Args:
            time_limit_s: Seconds that the reward of a completion may take.
            num_workers: Processes that compute it; None takes one for each core, up to 8.
            memory_mib: Address space that each of them may use.
        """

        time_limit_s: PositiveFloat = 30.0
        num_workers: PositiveInt | None = None
        memory_mib: PositiveInt = 8192

    config: Config


class BatchReward(Reward):
    """A reward in the trainer's process that scores many completions at once, as a model does."""

    @config
    class Config(Reward.Config):
        """Describes a reward that scores many completions at once."""

    config: Config

    @abstractmethod
    def score_all(self, requests: "Sequence[ScoreRequest]") -> Sequence[float]:
        """Return what completions are worth; each score depends on its own completion alone.

        Where it raises an exception, each completion is scored by itself, and those that raise one
        again have failed.
        """

    def score(self, prompt: str, completion: str, fields: Mapping[str, Any]) -> float:
        """Return what one completion is worth."""
        return self.score_all([ScoreRequest(prompt, completion, fields)])[0]


@attrs.frozen
class ScoreRequest:
    """A completion to be scored.

    Args:
        prompt: The prompt's text.
        completion: What the policy wrote.
        fields: As `Reward.score` takes them.
    """

    prompt: str
    completion: str
    fields: Mapping[str, Any]

    @property
    def seed_text(self) -> str:
        """What the random numbers of a call follow from."""
        return f"{len(self.prompt)}/{self.prompt}{self.completion}"

    def ask(self, reward: Reward) -> Any:
        """Return what the reward returns."""
        return reward.score(self.prompt, self.completion, self.fields)

    def checked(self, reward: Reward, value: Any) -> float:
        """Return that as a number.

        Raises:
            TypeError: It is not a number.
            ValueError: It is not finite.
        """
        return checked_score(value)


def checked_score(value: Any) -> float:
    """Return what a reward returned as a float; True and False are 1 and 0.

    Raises:
        TypeError: It is not a number.
        ValueError: It is not finite.
    """
    is_numpy = type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0
    if is_numpy:
        value = value.item()
    if not isinstance(value, Real):
        raise TypeError(f"it returned {value!r:.80}, a {type(value).__qualname__}, not a number")
    number = float(value)
    if not math.isfinite(number) or abs(number) > _LARGEST:
        raise ValueError(f"it returned {number!r}; expected a finite number below {_LARGEST:g}")
    return number


def answer_of(fields: Mapping[str, Any]) -> str:
    """Return the right answer of a prompt.

    Raises:
        DataError: Its record has none.
    """
    answer = fields.get(ANSWER)
    if isinstance(answer, (int, float)) and not isinstance(answer, bool):
        return str(answer)
    if not isinstance(answer, str):
        raise DataError(
            f"a prompt has no text `{ANSWER}`; it has {', '.join(fields) or 'no fields'}",
            where="data.prompts",
            hint=f'give each line an "{ANSWER}", or use another reward',
        )
    return answer
