"""`TrainLoop`: the loop. It trains, logs, evaluates and saves in one locked run directory."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import jax

from axcore.checkpoint import Checkpointer
from axcore.distributed import is_process_zero
from axcore.errors import TrainingError
from axcore.module import count_params
from axcore.plugins import MetricWriter
from axcore.trainer.callbacks.events import (
    CheckpointSaved,
    Evaluated,
    Observers,
    RunFinished,
    RunStarted,
    StepsDone,
)
from axcore.trainer.callbacks.metrics import LossMeter, summary_metrics
from axcore.trainer.callbacks.writers import Writers, find_writers
from axcore.trainer.run_directory.run_history import describe_kernels, record_run_start
from axcore.trainer.step import StepMetrics, TrainState
from axcore.trainer.stop_signals import StopSignals

if TYPE_CHECKING:
    from axcore.trainer.trainer import Trainer


@attrs.frozen
class TrainResult:
    """How a run ended.

    Args:
        step: Steps done.
        state: The last state, on the devices.
        validation: Metrics of the last evaluation; empty where there was none.
        is_complete: Whether all steps are done; otherwise the run can be taken up again.
    """

    step: int
    state: TrainState = attrs.field(repr=False)
    validation: Mapping[str, float]
    is_complete: bool


class TrainLoop:
    """One run of a trainer in a locked directory, from its newest checkpoint if it has one."""

    def __init__(self, trainer: "Trainer", directory: Path, observers: Observers) -> None:
        self.trainer = trainer
        self.cfg = trainer.config
        self.directory = directory
        self.emit = observers
        self.checkpointer = Checkpointer.for_run(self.cfg.checkpoint, directory)
        shard = trainer.batch_sharding.shard
        self.batches = trainer.data.train(process_index=shard.index, process_count=shard.count)
        self.validation: dict[str, float] = {}
        self.pending: list[StepMetrics] = []
        self.saved_step = 0
        self.since = time.perf_counter()

    def run(self) -> TrainResult:
        """Trains until all steps are done or a signal asks to stop, and saves where it ends."""
        state, step = self._first_state()
        with (
            self.checkpointer,
            Writers(self._writers(), self.directory, step=step) as self.metrics,
            StopSignals() as stop,
        ):
            self._announce(step)
            state, step = self._train(state, step, stop)
        is_complete = step >= self.cfg.max_steps
        if is_complete and not self.validation:
            self.validation = self.trainer.evaluate(self.trainer.step.evaluated_model(state))
        self.emit(RunFinished(step=step, is_complete=is_complete))
        return TrainResult(step, state, self.validation, is_complete)

    def _writers(self) -> tuple[MetricWriter, ...]:
        return find_writers(self.cfg.writers) if is_process_zero() else ()

    def _first_state(self) -> tuple[TrainState, int]:
        if self.checkpointer.latest() is None:
            return self.trainer.compiler.jitted_init(), 0
        restored = self.checkpointer.restore(self.trainer.compiler.abstract_state())
        self.batches.set_state(restored.extra["data"])
        self.saved_step = restored.step
        return restored.state, restored.step

    def _announce(self, step: int) -> None:
        trainer = self.trainer
        hardware = trainer.hardware
        peak = hardware.peak_flops.get(str(trainer.model.dtypes.compute))
        plan = trainer.kernel_plan()
        flops = trainer.model.flops_per_unit(trainer.batch_spec)
        mesh = trainer.describe_mesh()
        if is_process_zero():
            record_run_start(
                self.directory, step=step, hardware=hardware.name, mesh=mesh, plan=plan
            )
        self.emit(
            RunStarted(
                directory=str(self.directory),
                step=step,
                max_steps=self.cfg.max_steps,
                num_params=count_params(trainer.step.specs),
                hardware=hardware.name,
                hardware_changes=trainer.resolved.mesh_rule_diff(),
                mesh=mesh,
                data=str(trainer.data.summary()),
                kernels=describe_kernels(plan),
                unit=trainer.batch_spec.unit,
                flops=flops,
                peak_flops=peak * hardware.chips if peak else None,
            )
        )

    def _train(self, state: TrainState, step: int, stop: StopSignals) -> tuple[TrainState, int]:
        if step >= self.cfg.max_steps:
            return state, step
        train_step = self.trainer.compiler.compiled_step
        self.since = time.perf_counter()
        every = self.cfg.log_every_steps
        while step < self.cfg.max_steps and not stop.should_stop(step, every_steps=every):
            batch = self.trainer.batch_sharding.device_put(next(self.batches))
            state, metrics = train_step(state, batch)
            step += 1
            self.pending.append(metrics)
            self._after(step, state)
        if step < self.cfg.max_steps:
            self._save(step, state)
            self._log(step, state)
        return state, step

    def _after(self, step: int, state: TrainState) -> None:
        is_last = step == self.cfg.max_steps
        if step % self.cfg.log_every_steps == 0 or is_last:
            self._log(step, state)
        if step % self.cfg.eval_every_steps == 0 or is_last:
            self._evaluate(step, state)
        if self.checkpointer.is_due(step) or is_last:
            self._save(step, state)

    def _log(self, step: int, state: TrainState) -> None:
        """Fetches the metrics since the last time; the one place that waits for the devices."""
        if not self.pending:
            return
        fetched: list[StepMetrics] = jax.device_get(self.pending)
        elapsed = time.perf_counter() - self.since
        self.pending.clear()
        values = self._values(step, fetched, elapsed, int(jax.device_get(state.skipped)))
        self.metrics.write(step, "train", values)
        self.emit(StepsDone(step=step, metrics=values))
        self._check_skipped(step, int(values["skipped_steps"]))
        self.since = time.perf_counter()

    def _values(
        self, step: int, fetched: list[StepMetrics], elapsed: float, skipped: int
    ) -> dict[str, Any]:
        meter = LossMeter()
        for metrics in fetched:
            meter.add(metrics.losses)
        batch = self.trainer.batch_spec
        num_updates = step - skipped  # a skipped step does not move the schedule on
        return {
            **meter.metrics(),
            f"{batch.unit}s_per_s": len(fetched) * batch.num_units / elapsed,
            "step_time_s": elapsed / len(fetched),
            "gradient_norm": float(fetched[-1].gradient_norm),
            **self.trainer.learner.rates(max(0, num_updates - 1)),
            "skipped_steps": skipped,
            **summary_metrics(fetched[-1].summaries),
        }

    def _check_skipped(self, step: int, skipped: int) -> None:
        if skipped > self.cfg.max_skipped_steps:
            what = "a loss or gradient that is not finite"
            if self.cfg.learner.skip_spikes.sigmas:
                what += ", or a spike of the loss"
            raise TrainingError(
                f"{skipped} steps had {what}, which is more than "
                f"max_skipped_steps={self.cfg.max_skipped_steps}; none of them changed a parameter",
                where=f"step {step}",
                hint="lower learner.schedule.peak, or raise max_skipped_steps; "
                f"the last checkpoint is of step {self.saved_step}",
            )

    def _evaluate(self, step: int, state: TrainState) -> None:
        started = time.perf_counter()
        self.validation = self.trainer.evaluate(self.trainer.step.evaluated_model(state))
        if self.validation:
            self.metrics.write(step, "validation", self.validation)
            self.emit(Evaluated(step=step, metrics=self.validation))
        self.since += time.perf_counter() - started

    def _save(self, step: int, state: TrainState) -> None:
        if step == self.saved_step:
            return
        started = time.perf_counter()
        self.checkpointer.save(step, state, {"data": self.batches.get_state()})
        self.saved_step = step
        self.emit(CheckpointSaved(step=step))
        self.since += time.perf_counter() - started
