"""`Guard`: looks at a run between steps and may act on it, where an observer only watches.

A guard may change the batch of the next step or the state after a step, end the run with an error,
request a rollback (raise `RollbackRequest`), or give a reason to stop. Nothing of a guard runs
inside the compiled step. `EarlyStopping` and `SpikeRollback` are the core's own.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from axcore.config import Configurable, NonNegativeFloat, PositiveFloat, PositiveInt, config
from axcore.distributed import broadcast_object
from axcore.errors import ConfigError
from axcore.trainer.callbacks.metrics import METRICS_NAME
from axcore.trainer.run_directory.json_lines import read_json_lines
from axcore.trainer.step import TrainState

if TYPE_CHECKING:
    from axcore.trainer.trainer import Trainer


# Not an error: nothing failed in Python's sense, and nobody but the loop may catch it.
class RollbackRequest(Exception):  # noqa: N818 - a request, which ends no run
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
        """Check that it can do what its config says; called before anything is written.

        Raises:
            ConfigError: It cannot.
        """

    def on_start(self, trainer: "Trainer", directory: Path) -> None:
        """See what is trained and where, before the first step."""

    def on_batch(self, step: int, batch: Any) -> Any:
        """Return the batch, on the host, of the step that is about to run."""
        return batch

    def on_state(self, step: int, state: TrainState) -> TrainState:
        """Return the state after a step was dispatched; whoever reads it waits for the devices."""
        return state

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """See the metrics of a log line, before the step is evaluated or saved."""

    def on_evaluation(self, step: int, state: TrainState) -> None:
        """See the state that was evaluated just now; what it takes counts as evaluation."""

    def on_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """See the metrics of an evaluation on the validation data."""

    def reason_to_stop(self, step: int) -> str:
        """Return why training is complete after so many steps; "" to continue.

        It is asked before each step, also before the first one of a run that resumes.
        """
        return ""

    def measured(self, step: int, state: TrainState) -> Mapping[str, float]:
        """Return what is measured of the state after a step, which is logged; often nothing."""
        return {}

    def on_save(self, step: int, state: TrainState) -> None:
        """See the state that is about to be saved; one that raises keeps it from being so."""


class Guards(Guard):
    """Several guards as one, asked in their order."""

    def __init__(self, configs: Iterable[Guard.Config]) -> None:
        self._guards: tuple[Guard, ...] = tuple(cfg.build() for cfg in configs)

    def check(self, trainer: "Trainer") -> None:
        """Let every guard check its config."""
        for guard in self._guards:
            guard.check(trainer)

    def on_start(self, trainer: "Trainer", directory: Path) -> None:
        """Show every guard what is trained and where."""
        for guard in self._guards:
            guard.on_start(trainer, directory)

    def on_batch(self, step: int, batch: Any) -> Any:
        """Return the batch as the guards leave it."""
        for guard in self._guards:
            batch = guard.on_batch(step, batch)
        return batch

    def on_state(self, step: int, state: TrainState) -> TrainState:
        """Return the state as the guards leave it."""
        for guard in self._guards:
            state = guard.on_state(step, state)
        return state

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the metrics to every guard."""
        for guard in self._guards:
            guard.on_metrics(step, metrics)

    def on_evaluation(self, step: int, state: TrainState) -> None:
        """Show the state to every guard."""
        for guard in self._guards:
            guard.on_evaluation(step, state)

    def on_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the metrics to every guard."""
        for guard in self._guards:
            guard.on_validation(step, metrics)

    def reason_to_stop(self, step: int) -> str:
        """Return the first reason of a guard; "" where none has any."""
        # The first in order decides, so that all processes
        # report one reason; a generator asks no guard after it.
        return next(filter(None, (guard.reason_to_stop(step) for guard in self._guards)), "")

    def measured(self, step: int, state: TrainState) -> Mapping[str, float]:
        """Return what all guards measure."""
        found: dict[str, float] = {}
        for guard in self._guards:
            found |= guard.measured(step, state)
        return found

    def on_save(self, step: int, state: TrainState) -> None:
        """Show the state to every guard."""
        for guard in self._guards:
            guard.on_save(step, state)


class EarlyStopping(Guard):
    """Ends training once a metric of the validation data has not improved for some evaluations.

    The run is complete then, and its last state is saved. What was measured before a run was
    interrupted is read from its `metrics.jsonl`, so that a run that resumes stops at the same step.
    """

    @config
    class Config(Guard.Config):
        """Describes an `EarlyStopping`.

        Args:
            metric: Its name in the `validation` lines of `metrics.jsonl`.
            goal: Whether a smaller or a larger value is better.
            patience: How many evaluations in a row may bring no improvement.
            min_improvement: By how much the best value so far must be surpassed.
        """

        metric: str = "loss"
        goal: Literal["min", "max"] = "min"
        patience: PositiveInt = 3
        min_improvement: NonNegativeFloat = 0.0

    def on_start(self, trainer: Any, directory: Path) -> None:
        """Read what was measured before.

        Raises:
            ConfigError: There is no validation data.
        """
        # Found out before training: to learn it at the first evaluation costs hours.
        if next(iter(trainer.data.validation()), None) is None:
            raise ConfigError(
                "early stopping needs validation data, and there is none",
                where="guards",
                hint="--set data.validation_fraction=0.1, or take the guard out",
            )
        name = self.config.metric
        # By process 0, for all: the file may show to other hosts with a delay,
        # and processes that stop at different steps wait for each other for ever.
        found: dict[str, Any] = broadcast_object(
            "reading validation metrics",
            lambda: {
                # As text: JSON has no integer keys, and nan would not come back.
                str(line["step"]): str(line[name])
                for line in read_json_lines(directory / METRICS_NAME)
                if line.get("split") == "validation" and name in line
            },
        )
        self._values = {int(step): float(value) for step, value in found.items()}

    def on_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the metric.

        Raises:
            ConfigError: There is no such metric.
        """
        name = self.config.metric
        if name not in metrics:
            raise ConfigError(
                f"the validation metrics have no {name!r}; they are {', '.join(metrics)}",
                where="guards.metric",
                hint="set it to one of these",
            )
        self._values[step] = metrics[name]

    def reason_to_stop(self, step: int) -> str:
        """Return which value of which step was not surpassed for how long."""
        cfg = self.config
        # Their values belong to a history that ended.
        if max(self._values, default=0) > step:  # a run that went back evaluates later steps again
            self._values = {one: value for one, value in self._values.items() if one <= step}
        # Only where an evaluation has just been: a run that resumes between two
        # would otherwise stop at another step than one without an interruption.
        if step not in self._values:
            return ""
        best, best_step, num_worse = math.inf, step, 0
        sign = 1 if cfg.goal == "min" else -1
        for one in sorted(self._values):
            value = sign * self._values[one]
            if value < best - cfg.min_improvement:  # not so where it is nan
                best, best_step, num_worse = value, one, 0
            else:
                num_worse += 1
        if num_worse < cfg.patience:
            return ""
        evaluations = "evaluation" if num_worse == 1 else f"{num_worse} evaluations"
        return (
            f"{cfg.metric} was {sign * best:.6g} at step {best_step}, and not better in the "
            f"{evaluations} since"
        )


class SpikeRollback(Guard):
    """Rolls back where the loss of a log line is far above those before it.

    It judges no line before its window is full, and none whose loss is not finite: such steps
    changed nothing. `Learner.Config.skip_spikes` looks at single steps
    instead, and takes none back.
    """

    @config
    class Config(Guard.Config):
        """Describes a `SpikeRollback`.

        Args:
            sigmas: Standard deviations above the mean of the window from which a loss is a spike.
            window: Log lines that the mean is taken over.
            steps: How many steps to undo at least.
        """

        sigmas: PositiveFloat = 6.0
        window: PositiveInt = 20
        steps: PositiveInt = 100

    def on_start(self, trainer: Any, directory: Path) -> None:
        """Begin with an empty window."""
        self._losses: deque[float] = deque(maxlen=self.config.window)

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Compare the loss of a log line with those before it.

        Raises:
            RollbackRequest: It is a spike.
        """
        cfg, loss = self.config, metrics["loss"]
        # A step that is not finite changed nothing, and its nan
        # in the window would make every later comparison false.
        if not np.isfinite(loss):
            return
        if len(self._losses) == cfg.window:
            mean, deviation = float(np.mean(self._losses)), float(np.std(self._losses))
            if loss > mean + cfg.sigmas * deviation:
                raise RollbackRequest(
                    f"the loss {loss:.4g} at step {step} is more than {cfg.sigmas:g} standard "
                    f"deviations ({deviation:.2g}) above the mean {mean:.4g} of the last "
                    f"{cfg.window} log lines",
                    steps=cfg.steps,
                )
        # After the comparison: a spike must not widen the deviation that it is measured by.
        self._losses.append(loss)
