"""What listens to a run: events, observers, metric writers, metrics and the heartbeat."""

from axcore.trainer.callbacks.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    Observer,
    Observers,
    PhaseStarted,
    RolledBack,
    RunFinished,
    RunStarted,
    StepsDone,
)
from axcore.trainer.callbacks.writers import Writer

__all__ = [
    "CheckpointSaved",
    "Evaluated",
    "Event",
    "Observer",
    "Observers",
    "PhaseStarted",
    "RolledBack",
    "RunFinished",
    "RunStarted",
    "StepsDone",
    "Writer",
]
