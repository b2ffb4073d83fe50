"""Tasks: objectives around a model, which add losses from a batch."""

from axcore.tasks.contrastive import Contrastive, Pairs
from axcore.tasks.ctc import CTC, edit_distance, greedy_labels
from axcore.tasks.distillation import (
    Distill,
    DistillationTask,
    DistillTopK,
    divergence,
    kl_divergence,
)
from axcore.tasks.flow_matching import (
    CosinePath,
    FlowMatching,
    GenerativeModel,
    LogitNormalTime,
    NoisePath,
    Solver,
    StraightPath,
    TimeDistribution,
    UniformTime,
    integrate,
)
from axcore.tasks.masked_tokens import MaskedTokens
from axcore.tasks.policy_gradient import (
    DAPO,
    GRPO,
    GSPO,
    RLOO,
    DrGRPO,
    OnPolicyDistill,
    PolicyGradient,
    RoutingReplay,
)
from axcore.tasks.policy_losses import Advantage, Clip, KLPenalty, SamplerCorrection
from axcore.tasks.ppo import GAE, PPO, ValueLoss
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
from axcore.tasks.supervised import ROW_WEIGHTS, Classification, Regression, SupervisedTask
from axcore.tasks.task import FrozenModel, Task, TrainedModule

__all__ = [
    "CTC",
    "DAPO",
    "DPO",
    "GAE",
    "GRPO",
    "GSPO",
    "IPO",
    "KTO",
    "ORPO",
    "PPO",
    "RLOO",
    "ROW_WEIGHTS",
    "Advantage",
    "Answers",
    "Classification",
    "Clip",
    "Contrastive",
    "CosinePath",
    "Distill",
    "DistillTopK",
    "DistillationTask",
    "DrGRPO",
    "FlowMatching",
    "FrozenModel",
    "GenerativeModel",
    "KLPenalty",
    "LogitNormalTime",
    "MaskedTokens",
    "NoisePath",
    "OnPolicyDistill",
    "Pairs",
    "PolicyGradient",
    "PreferenceTask",
    "ReferenceTask",
    "Regression",
    "RewardModel",
    "RoutingReplay",
    "SamplerCorrection",
    "SimPO",
    "Solver",
    "StraightPath",
    "SupervisedTask",
    "Task",
    "TimeDistribution",
    "TrainedModule",
    "UniformTime",
    "ValueLoss",
    "divergence",
    "edit_distance",
    "greedy_labels",
    "integrate",
    "kl_divergence",
    "rewards",
]
