"""Rollouts: training data that the policy itself samples, and what each sample is worth."""

from axcore.rollouts.prompts import Arithmetic, PromptFiles, ReversedStrings
from axcore.rollouts.rollout import Rollout
from axcore.rollouts.rollouts import Rollouts
from axcore.rollouts.samples import RolloutSamples

__all__ = [
    "Arithmetic",
    "PromptFiles",
    "ReversedStrings",
    "Rollout",
    "RolloutSamples",
    "Rollouts",
]
