"""`Guard`: looks at a run between steps and may answer, where an observer only watches.

A guard may change the batch of the next step or the state after a step, end the run with an error,
or raise `RollBack`, or give a reason to stop. Nothing of a guard runs inside the compiled step.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from axcore.config import Configurable, config
from axcore.trainer.step import TrainState

if TYPE_CHECKING:
    from axcore.trainer.trainer import Trainer


class RollBack(Exception):  # noqa: N818 - a wish, which ends no run
    """Asks the loop to go back to a checkpoint, and to train on from there.

    Args:
        reason: What happened, with values; the run's record of rollbacks keeps it.
        steps: How many steps to undo at least; the loop restores the newest known good checkpoint
            that is so much older.
        skips_data: Whether training continues with new batches; otherwise with the same again.
    """

    def __init__(self, reason: str, *, steps: int = 1, skips_data: bool = True) -> None:
        super().__init__(reason)
        self.steps = steps
        self.skips_data = skips_data


class Guard(Configurable):
    """Looks at a run between steps; each method changes nothing unless a guard defines it.

    In a run of several processes every process asks its own guards, and all must answer alike:
    by what they all see, such as metrics, or after an exchange between them.
    """

    @config
    class Config(Configurable.Config["Guard"]):
        """Describes a `Guard`."""

    def check(self, trainer: "Trainer") -> None:
        """Checks that it can do what its config says; called before anything is written.

        Raises:
            ConfigError: It cannot.
        """

    def on_start(self, trainer: "Trainer", directory: Path) -> None:
        """Sees what is trained and where, before the first step."""

    def on_batch(self, step: int, batch: Any) -> Any:
        """Returns the batch, on the host, of the step that is about to run."""
        return batch

    def on_state(self, step: int, state: TrainState) -> TrainState:
        """Returns the state after a step was dispatched; whoever reads it waits for the devices."""
        return state

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Sees the metrics of a log line, before the step is evaluated or saved."""

    def on_evaluation(self, step: int, state: TrainState) -> None:
        """Sees the state that was evaluated just now; what it takes counts as evaluation."""

    def on_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Sees the metrics of an evaluation on the validation data."""

    def reason_to_stop(self, step: int) -> str:
        """Returns why training is complete after so many steps; "" to continue.

        It is asked before each step, also before the first one of a run that resumes.
        """
        return ""

    def measured(self, step: int, state: TrainState) -> Mapping[str, float]:
        """Returns what is measured of the state after a step, which is logged; often nothing."""
        return {}

    def on_save(self, step: int, state: TrainState) -> None:
        """Sees the state that is about to be saved; one that raises keeps it from being so."""


class Guards(Guard):
    """Several guards as one, asked in their order."""

    def __init__(self, configs: Iterable[Guard.Config]) -> None:
        self._guards: tuple[Guard, ...] = tuple(cfg.build() for cfg in configs)

    def check(self, trainer: "Trainer") -> None:
        """Lets every guard check its config."""
        for guard in self._guards:
            guard.check(trainer)

    def on_start(self, trainer: "Trainer", directory: Path) -> None:
        """Shows every guard what is trained and where."""
        for guard in self._guards:
            guard.on_start(trainer, directory)

    def on_batch(self, step: int, batch: Any) -> Any:
        """Returns the batch as the guards leave it."""
        for guard in self._guards:
            batch = guard.on_batch(step, batch)
        return batch

    def on_state(self, step: int, state: TrainState) -> TrainState:
        """Returns the state as the guards leave it."""
        for guard in self._guards:
            state = guard.on_state(step, state)
        return state

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows the metrics to every guard."""
        for guard in self._guards:
            guard.on_metrics(step, metrics)

    def on_evaluation(self, step: int, state: TrainState) -> None:
        """Shows the state to every guard."""
        for guard in self._guards:
            guard.on_evaluation(step, state)

    def on_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows the metrics to every guard."""
        for guard in self._guards:
            guard.on_validation(step, metrics)

    def reason_to_stop(self, step: int) -> str:
        """Returns the first reason of a guard; "" where none has any."""
        return next(filter(None, (guard.reason_to_stop(step) for guard in self._guards)), "")

    def measured(self, step: int, state: TrainState) -> Mapping[str, float]:
        """Returns what all guards measure."""
        found: dict[str, float] = {}
        for guard in self._guards:
            found |= guard.measured(step, state)
        return found

    def on_save(self, step: int, state: TrainState) -> None:
        """Shows the state to every guard."""
        for guard in self._guards:
            guard.on_save(step, state)
