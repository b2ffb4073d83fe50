"""Reading a run directory: its config, and its newest checkpoint's model."""

from pathlib import Path
from typing import Any, NamedTuple

from axcore.config import evolve
from axcore.errors import CheckpointError

ANY_DEVICES = {"fsdp": -1}
"""A mesh that fits however many devices there are; those of training may not be here."""


class SavedRun(NamedTuple):
    """A trainer, and the state of its model at a step."""

    trainer: Any
    state: Any
    step: int


def open_run(directory: str, *, step: int | None = None) -> SavedRun:
    """Returns the run in a directory with its newest model, or that of a step.

    Raises:
        CheckpointError: The directory is no run, or has no checkpoint yet.
        ConfigError: Its config cannot be read.
    """
    from axcore.checkpoint import Checkpointer
    from axcore.cli.experiment import read_config
    from axcore.trainer.step import TrainState

    path = Path(directory)
    if not (path / "config.json").is_file():
        raise CheckpointError(
            "the directory is no run: it has no config.json",
            where=str(path),
            mend="name a directory that `axcore train` made, such as runs/tiny",
        )
    cfg = read_config(path / "config.json")
    trainer = evolve(cfg, mesh=ANY_DEVICES).build()
    checkpointer = Checkpointer.of_run(trainer.config.checkpoint, path)
    if checkpointer.latest() is None:
        raise CheckpointError(
            "the run has no checkpoint yet", where=str(path), mend="train it for longer"
        )
    template = TrainState(None, trainer.abstract_state().model, None, None)  # type: ignore[arg-type]
    restored = checkpointer.restore(template, step=step, partial=True)
    return SavedRun(trainer, restored.state.model, restored.step)
