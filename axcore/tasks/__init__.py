"""Tasks: objectives around a model, which add losses from a batch."""

from axcore.tasks.distillation import Distill, DistillationTask, divergence, kl_divergence
from axcore.tasks.policy_gradient import (
    DAPO,
    GRPO,
    GSPO,
    RLOO,
    Advantage,
    Clip,
    DrGRPO,
    KLPenalty,
    PolicyGradient,
)
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
    "DAPO",
    "DPO",
    "GRPO",
    "GSPO",
    "IPO",
    "KTO",
    "ORPO",
    "RLOO",
    "Advantage",
    "Answers",
    "Classification",
    "Clip",
    "Distill",
    "DistillationTask",
    "DrGRPO",
    "FrozenModel",
    "KLPenalty",
    "PolicyGradient",
    "PreferenceTask",
    "ReferenceTask",
    "Regression",
    "RewardModel",
    "SimPO",
    "SupervisedTask",
    "Task",
    "divergence",
    "kl_divergence",
    "rewards",
]
