"""Rewards: what a completion is worth, computed in processes with time limits. It loads no jax."""

from axcore.rewards.builtin import (
    CodeTests,
    ExactMatch,
    FieldValue,
    MatchingCharacters,
    NumericAnswer,
    OverlongPenalty,
    PythonReward,
    RegexMatch,
)
from axcore.rewards.failures import FailureBudget
from axcore.rewards.judge import Judge
from axcore.rewards.model_reward import ModelReward
from axcore.rewards.pool import RewardPool
from axcore.rewards.reward import (
    ANSWER,
    COMPLETION_TOKENS,
    BatchReward,
    Reward,
    ScoreRequest,
    WorkerReward,
    answer_of,
)

__all__ = [
    "ANSWER",
    "COMPLETION_TOKENS",
    "BatchReward",
    "CodeTests",
    "ExactMatch",
    "FailureBudget",
    "FieldValue",
    "Judge",
    "MatchingCharacters",
    "ModelReward",
    "NumericAnswer",
    "OverlongPenalty",
    "PythonReward",
    "RegexMatch",
    "Reward",
    "RewardPool",
    "ScoreRequest",
    "WorkerReward",
    "answer_of",
]
