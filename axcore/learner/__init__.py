"""Learning: optimizers, schedules, and the update of a model's parameters."""

from axcore.learner.learner import Learner
from axcore.learner.optimizers import AdamW
from axcore.learner.schedules import Constant, Schedule, WarmupCosine

__all__ = ["AdamW", "Constant", "Learner", "Schedule", "WarmupCosine"]
