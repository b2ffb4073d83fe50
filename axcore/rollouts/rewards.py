"""Rewards: what a completion is worth, as a function of prompt, completion and fields."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from axcore.config import REQUIRED, Configurable, config
from axcore.rollouts.prompts import answer_of


class Reward(Configurable, ABC):
    """Says what completions are worth."""

    @config
    class Config(Configurable.Config["Reward"]):
        """Describes a reward."""

    @abstractmethod
    def score(self, prompt: str, completion: str, fields: Mapping[str, Any]) -> float:
        """Return what a completion is worth, a finite number.

        Args:
            prompt: The prompt's text.
            completion: What the policy wrote, without the token that ends it.
            fields: The other fields of the prompt's record.
        """


@config
class WeightedReward:
    """A reward, and what it counts for.

    Args:
        reward: What a completion is worth.
        weight: What that is multiplied by before rewards are added up; 0 only measures it.
    """

    reward: Reward.Config = REQUIRED
    weight: float = 1.0


class ExactMatch(Reward):
    """1 where the completion is the field `answer`, white space around both left out; else 0."""

    def score(self, prompt: str, completion: str, fields: Mapping[str, Any]) -> float:
        """Return 1 or 0."""
        return float(completion.strip() == answer_of(fields).strip())


class MatchingCharacters(Reward):
    """The share of characters that are those of the field `answer`, place by place.

    It is 1 for the answer itself, and less for what is too short or too long.
    """

    def score(self, prompt: str, completion: str, fields: Mapping[str, Any]) -> float:
        """Return the share."""
        answer, text = answer_of(fields).strip(), completion.strip()
        num_right = sum(a == b for a, b in zip(text, answer, strict=False))
        return num_right / max(1, len(answer), len(text))
