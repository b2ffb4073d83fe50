"""Training: the step, the loop, its events and metrics, and the run directory."""

from axcore.trainer.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    Observer,
    RunFinished,
    RunStarted,
    StepsDone,
)
from axcore.trainer.hardware import for_hardware
from axcore.trainer.run import TrainResult
from axcore.trainer.trainer import Trainer
from axcore.trainer.writers import Writer

__all__ = [
    "CheckpointSaved",
    "Evaluated",
    "Event",
    "Observer",
    "RunFinished",
    "RunStarted",
    "StepsDone",
    "TrainResult",
    "Trainer",
    "Writer",
    "for_hardware",
]
