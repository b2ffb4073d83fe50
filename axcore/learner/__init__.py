"""Learning: optimizers, schedules, and the update of a model's parameters."""

from axcore.learner.adam_variants import ADOPT, LAMB, AdEMAMix, ScheduleFreeAdamW
from axcore.learner.diloco import DiLoCo
from axcore.learner.groups import ParamGroup
from axcore.learner.learner import EMA, Learner, LearnerState, SpikeGuard
from axcore.learner.low_precision import LowPrecisionState
from axcore.learner.optimizers import SGD, Adafactor, AdamW, AveragedState, Lion, Muon, Optimizer
from axcore.learner.schedules import (
    ConstantSchedule,
    Schedule,
    WarmupCosine,
    WarmupInverseSqrt,
    WarmupLinear,
    WarmupPiecewise,
    WarmupStableDecay,
)
from axcore.learner.soap import SOAP

__all__ = [
    "ADOPT",
    "EMA",
    "LAMB",
    "SGD",
    "SOAP",
    "AdEMAMix",
    "Adafactor",
    "AdamW",
    "AveragedState",
    "ConstantSchedule",
    "DiLoCo",
    "Learner",
    "LearnerState",
    "Lion",
    "LowPrecisionState",
    "Muon",
    "Optimizer",
    "ParamGroup",
    "Schedule",
    "ScheduleFreeAdamW",
    "SpikeGuard",
    "WarmupCosine",
    "WarmupInverseSqrt",
    "WarmupLinear",
    "WarmupPiecewise",
    "WarmupStableDecay",
]
