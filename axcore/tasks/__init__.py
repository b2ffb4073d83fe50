"""Tasks: objectives around a model, which add losses from a batch."""

from axcore.tasks.preference import (
    DPO,
    IPO,
    KTO,
    ORPO,
    Answers,
    PreferenceTask,
    ReferenceTask,
    SimPO,
)
from axcore.tasks.reward_model import RewardModel, rewards
from axcore.tasks.supervised import Classification, Regression, SupervisedTask
from axcore.tasks.task import FrozenModel, Task

__all__ = [
    "DPO",
    "IPO",
    "KTO",
    "ORPO",
    "Answers",
    "Classification",
    "FrozenModel",
    "PreferenceTask",
    "ReferenceTask",
    "Regression",
    "RewardModel",
    "SimPO",
    "SupervisedTask",
    "Task",
    "rewards",
]
