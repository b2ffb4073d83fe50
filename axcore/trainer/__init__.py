"""Training: the step, the loop, its events and metrics, and the run directory."""

from axcore.trainer.callbacks.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    Observer,
    PhaseStarted,
    RolledBack,
    RunFinished,
    RunStarted,
    StepsDone,
)
from axcore.trainer.callbacks.writers import Writer
from axcore.trainer.compile import KeptSteps
from axcore.trainer.guards import EarlyStopping, Guard, RollbackRequest, SpikeRollback
from axcore.trainer.loop import TrainResult
from axcore.trainer.resolve import ResolvedChange, ResolvedConfig, resolve, with_base_model
from axcore.trainer.trainer import (
    KernelsConfig,
    LoggingConfig,
    RollbackConfig,
    ShardingConfig,
    Trainer,
)

__all__ = [
    "CheckpointSaved",
    "EarlyStopping",
    "Evaluated",
    "Event",
    "Guard",
    "KeptSteps",
    "KernelsConfig",
    "LoggingConfig",
    "Observer",
    "PhaseStarted",
    "ResolvedChange",
    "ResolvedConfig",
    "RollbackConfig",
    "RollbackRequest",
    "RolledBack",
    "RunFinished",
    "RunStarted",
    "ShardingConfig",
    "SpikeRollback",
    "StepsDone",
    "TrainResult",
    "Trainer",
    "Writer",
    "resolve",
    "with_base_model",
]
