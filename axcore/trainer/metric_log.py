"""`MetricLog`: the metrics of steps on their way to the writers; `StepTimer`: their time."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from axcore.distributed import is_process_zero
from axcore.module import BatchSpec
from axcore.trainer.callbacks.metrics import memory_metrics, summary_metrics
from axcore.trainer.callbacks.writers import Writers, find_writers
from axcore.trainer.run_directory.directory import check_is_there
from axcore.trainer.saver import Position
from axcore.trainer.step import StepMetrics

if TYPE_CHECKING:
    from axcore.trainer.trainer import Trainer

# Enough for the host to prepare several batches ahead. More would
# hold the memory of more batches, and see a stop or a nan later.
_MAX_STEPS_IN_FLIGHT = 8
"""How many steps the devices may be behind the host: enough to never wait for it."""


class StepTimer:
    """The time of the steps since the last log line, without evaluations and saves."""

    def __init__(self) -> None:
        self._waited_s = 0.0
        self.start()

    def start(self) -> None:
        """Begin to time steps, after whatever came before them."""
        self._since = self._wall_clock = time.perf_counter()

    def stop(self) -> None:
        """Take the time of the steps that are done by now."""
        self._elapsed_s = time.perf_counter() - self._since

    def next_line(self) -> None:
        """Time the steps of the next log line, from now on."""
        self._since = time.perf_counter()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Time nothing within: it is not a part of any step."""
        started = time.perf_counter()
        yield
        # Moved by what was within, so that the clock looks as if it had stopped.
        self._since += time.perf_counter() - started

    def metrics(self, num_steps: int, batch: BatchSpec, waited_s: float) -> dict[str, float]:
        """Return the speed of the steps before `stop`.

        Args:
            num_steps: How many they are.
            batch: What a step takes.
            waited_s: Seconds that the run has waited for batches since its start.
        """
        wall_clock, self._wall_clock = self._wall_clock, time.perf_counter()
        before, self._waited_s = self._waited_s, waited_s
        num_units = num_steps * batch.num_units
        return {
            f"{batch.unit}s_per_s": num_units / self._elapsed_s,
            f"wall_clock_{batch.unit}s_per_s": num_units / (self._wall_clock - wall_clock),
            "step_time_s": self._elapsed_s / num_steps,
            "data_wait_s": (waited_s - before) / num_steps,
        }


class MetricLog:
    """Collects the metrics of steps on the devices, and writes them line by line.

    Attributes:
        is_step_done: Whether some step of this process is known to be done.
        timer: Of the steps of the next line.
    """

    def __init__(self, trainer: "Trainer", directory: Path, position: Position) -> None:
        self.is_step_done = False
        self.timer = StepTimer()
        self._trainer = trainer
        self._directory = directory
        self._position = position

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Open the writers of the config for the steps within."""
        writers = find_writers(self._trainer.config.logging.writers) if is_process_zero() else ()
        with Writers(writers, self._directory, step=self._position.step) as self._writers:
            yield

    def add(self, metrics: StepMetrics) -> None:
        """Add the metrics of a step that was dispatched."""
        pending = self._position.pending
        pending.append(metrics)
        # With more steps that are dispatched and not done, the threads of several processes'
        # devices may wait for one another for ever.
        if len(pending) > _MAX_STEPS_IN_FLIGHT:
            # Waits for the step that far back, while those after it keep the devices busy.
            pending[-1 - _MAX_STEPS_IN_FLIGHT].is_applied.block_until_ready()
            self.is_step_done = True

    def has_step(self) -> bool:
        """Whether a step of this process is done; may be asked from another thread."""
        pending: list[Any] = self._position.pending[:1]
        # `is_ready` and no wait: another thread asks while the main one may be stuck.
        return self.is_step_done or any(one.is_applied.is_ready() for one in pending)

    def fetch(self) -> list[StepMetrics]:
        """Take the metrics since the last time off the devices, which waits for them.

        The window of the losses stays: where a run is stopped, the line to come has these steps
        too, as in a run that is not.
        """
        position = self._position
        # One transfer for all; each by itself would wait for the devices again.
        fetched: list[StepMetrics] = jax.device_get(position.pending)
        if fetched:
            # After `device_get`, which waits for the steps:
            # the time is theirs, not that of their dispatch.
            self.timer.stop()
            self.is_step_done = True
            position.pending.clear()
        for metrics in fetched:
            position.window.add(metrics.losses, metrics.group_losses)
        return fetched

    def line(self, fetched: list[StepMetrics], waited_s: float) -> dict[str, Any]:
        """Return the metrics of a log line.

        Args:
            fetched: Those of the steps since the last time.
            waited_s: Seconds that the run has waited for batches since its start.
        """
        trainer, position, last = self._trainer, self._position, fetched[-1]
        batch = trainer.batch_spec
        skipped = int(jax.device_get(position.state.skipped))
        # See `TrainStep.__call__`.
        num_updates = position.step - skipped  # a skipped step does not move the schedule on
        return {
            **position.window.metrics(batch.loss_groups),
            **self.timer.metrics(len(fetched), batch, waited_s),
            "gradient_norm": float(last.gradient_norm),
            **trainer.step.norms.metrics(position.step, last.gradient_norms),
            **trainer.learner.rates(max(0, num_updates - 1)),
            "skipped_steps": skipped,
            **memory_metrics(trainer.mesh.local_devices),
            **summary_metrics(last.summaries),
        }

    def write(self, split: str, metrics: Mapping[str, Any]) -> None:
        """Write a line of metrics of the present step."""
        # A directory that was moved away would otherwise be made again, with half a log.
        check_is_there(self._directory)
        self._writers.write(self._position.step, split, metrics)
