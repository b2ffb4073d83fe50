"""Tasks: objectives around a model, which add losses from a batch."""

from axcore.tasks.dpo import DPO
from axcore.tasks.frozen_model import FrozenModel
from axcore.tasks.ipo import IPO
from axcore.tasks.kto import KTO
from axcore.tasks.orpo import ORPO
from axcore.tasks.preference_task import Answers, PreferenceTask
from axcore.tasks.reference import ReferenceTask
from axcore.tasks.simpo import SimPO
from axcore.tasks.supervised import Classification, Regression, SupervisedTask
from axcore.tasks.task import Task

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
    "SimPO",
    "SupervisedTask",
    "Task",
]
