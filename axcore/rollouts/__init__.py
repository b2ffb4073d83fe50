"""Rollouts: training data that the policy itself samples, and what each sample is worth."""

from axcore.rollouts.prompts import Arithmetic, PromptFiles, ReversedStrings
from axcore.rollouts.rewards import ExactMatch, MatchingCharacters, Reward, WeightedReward
from axcore.rollouts.rollout import Rollout
from axcore.rollouts.rollouts import Rollouts
from axcore.rollouts.samples import RolloutSamples

__all__ = [
    "Arithmetic",
    "ExactMatch",
    "MatchingCharacters",
    "PromptFiles",
    "ReversedStrings",
    "Reward",
    "Rollout",
    "RolloutSamples",
    "Rollouts",
    "WeightedReward",
]
