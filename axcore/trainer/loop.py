"""`TrainLoop`: the loop. It trains, logs, evaluates and saves in one locked run directory."""

import json
import math
import signal
import time
import warnings
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import jax

from axcore.checkpoint import Checkpointer, MemorySnapshots, Restored
from axcore.config import immutabledict, render_config
from axcore.data import Policy, PrefetchedBatches
from axcore.distributed import broadcast_object, is_process_zero, process_count
from axcore.errors import TrainingError
from axcore.module import count_params
from axcore.plugins import Kernel
from axcore.trainer.callbacks.events import (
    CheckpointSaved,
    Evaluated,
    Observers,
    Phase,
    PhaseStarted,
    RolledBack,
    RunFinished,
    RunStarted,
    StepsDone,
)
from axcore.trainer.callbacks.metrics import LossWindow, memory_metrics, summary_metrics
from axcore.trainer.callbacks.writers import Writers, find_writers
from axcore.trainer.flipped_values import FlippedValues
from axcore.trainer.guards import Guards, RollBack
from axcore.trainer.recovery import Rollbacks, SkippedSteps
from axcore.trainer.reference_steps import suspects
from axcore.trainer.run_directory.directory import LockedRun, check_is_there
from axcore.trainer.run_directory.run_history import (
    describe_kernels,
    keep_first_batch,
    record_run_start,
)
from axcore.trainer.run_directory.saved_steps import (
    check_saved_steps,
    record_saved_step,
    recorded_rewinds,
)
from axcore.trainer.step import StepMetrics, TrainState
from axcore.trainer.stop_signals import TERMINATED, StopSignals
from axcore.whole_files import write_whole

if TYPE_CHECKING:
    from axcore.trainer.trainer import Trainer


FIRST_WEIGHTS_NAME = "first_weights.txt"
STOPPED_EARLY_NAME = "stopped_early.json"
MAX_STEPS_IN_FLIGHT = 8
"""How many steps the devices may be behind the host: enough to never wait for it."""


@attrs.frozen
class TrainResult:
    """How a run ended.

    Args:
        step: Steps done.
        state: The last state, on the devices.
        validation: Metrics of the last evaluation; empty where there was none.
        is_complete: Whether all steps are done, or a guard ended the run. Otherwise it was asked to
            stop: its checkpoint is saved, and the same call resumes it.
        units: Of metrics, by name, as the task says them.
        stop_reason: Why a guard ended the run before its last step; "" where none did.
    """

    step: int
    state: TrainState = attrs.field(repr=False)
    validation: Mapping[str, float]
    is_complete: bool
    units: Mapping[str, str] = immutabledict()
    stop_reason: str = ""


class TrainLoop:
    """One run of a trainer in a locked directory, from its newest checkpoint if it has one."""

    def __init__(
        self,
        trainer: "Trainer",
        batches: PrefetchedBatches,
        run: LockedRun,
        observers: Observers,
        guards: Guards,
    ) -> None:
        cfg = trainer.config
        self.trainer = trainer
        self.cfg = cfg
        self.directory = run.path
        self.identity = run.identity
        self.config_changes = run.changes
        self.code = run.code
        self.emit = observers
        self.checkpointer = Checkpointer.for_run(cfg.checkpoint, run.path)
        self.snapshots = MemorySnapshots(cfg.snapshots, run.identity.as_json())
        recorded = broadcast_object("reading rewinds", lambda: recorded_rewinds(run.path))
        self.rewinds, self.launches = recorded
        self.guards = guards
        self.flipped = FlippedValues(trainer.step.specs)
        self.batches = batches
        self.validation: dict[str, float] = {}
        self.policy = Policy(trainer.model)
        self.state: Any = None  # a TrainState, but for the moment before one is restored
        self.step = 0
        self.saved_step = 0
        self.is_save_due = self.is_step_done = False
        self.stop_reason = ""
        self.never_run: tuple[Kernel, ...] = ()
        self.pending: list[StepMetrics] = []
        self.window = LossWindow()
        self.since = self.wall_clock = time.perf_counter()
        self.waited_s = 0.0
        self.skipped = SkippedSteps(
            most=cfg.max_skipped_steps,
            most_in_a_row=cfg.max_skipped_in_a_row,
            window_steps=cfg.budget_window_steps,
        )
        self.rollbacks = Rollbacks(
            run.path, budget=cfg.max_rollbacks, window_steps=cfg.budget_window_steps
        )

    def run(
        self, *, from_step: int | None = None, launch: str = "", returns_when_stopped: bool = False
    ) -> TrainResult:
        """Trains until all steps are done or a signal asks to stop, and saves where it ends.

        Args:
            from_step: The checkpoint to resume from, 0 for the start; by default the newest.
            launch: Which launch this start is of; only the first start of one goes back.
            returns_when_stopped: Whether a request to stop is no exception.

        Raises:
            KeyboardInterrupt: Ctrl-C asked to stop.
            SystemExit: SIGTERM, SIGHUP or a preemption notice did; its code is 143.
        """
        with (
            self.checkpointer,
            closing(self.snapshots),
            closing(self.batches),
            StopSignals(notice=self.cfg.preemption_notice, may_end=self._has_no_step) as stop,
        ):
            self._resume(from_step, launch)
            self._announce()
            while (wish := self._train(stop)) is not None:
                self._roll_back(wish)
            self._phase("save")
            self.checkpointer.wait()
            self._report_saved()
            if self.step == self.saved_step:
                self.snapshots.delete()
            stopped_by = None if returns_when_stopped else stop.agreed()
        check_is_there(self.directory)
        is_complete = self.step >= self.cfg.max_steps or bool(self.stop_reason)
        self._keep_stop_reason()
        if is_complete and not self.validation and stopped_by is None:
            self.validation = self._evaluated()
        self._phase("idle")
        self.emit(
            RunFinished(step=self.step, is_complete=is_complete, stop_reason=self.stop_reason)
        )
        if stopped_by is not None:
            # A subclass of KeyboardInterrupt would not end the process as Ctrl-C does, and a loop
            # of a shell around it would continue.
            is_interrupt = stopped_by is signal.SIGINT
            raise KeyboardInterrupt if is_interrupt else SystemExit(TERMINATED)
        return TrainResult(
            self.step,
            self.state,
            self.validation,
            is_complete,
            units=self.trainer.task.metric_units(),
            stop_reason=self.stop_reason,
        )

    # -- Where training starts, and where it goes back to ----------------------------------------

    def _resume(self, from_step: int | None, launch: str) -> None:
        if self.snapshots.is_on:
            self.snapshots.open(self.rewinds)
        if from_step is not None and from_step != self.launches.get(launch):
            self._restore(step=from_step or None)
            self.launches |= {launch: from_step} if launch else {}
            self._rewind(from_step)
        elif not self._resume_from_snapshot():
            saved = self.checkpointer.steps()
            check_saved_steps(self.directory, saved, self.checkpointer.directory)
            self._restore(at_or_before=max(saved, default=None))
        if self.snapshots.is_on:
            self.snapshots.forget_after(self.step)

    def _resume_from_snapshot(self) -> bool:
        """Resumes from the newest state in host memory, if it is newer than all checkpoints."""
        if not self.snapshots.is_on:
            return False
        self._phase("restore")
        steps, place = self.checkpointer.steps(), self.snapshots.directory
        self.saved_step = max(steps, default=0)
        template = self.trainer.compiler.abstract_state()
        restored = self.snapshots.restore(template, newer_than=self.saved_step)
        if restored is None:
            return False
        self._take_up(restored, place)
        taken = f"the snapshot of step {self.step} in {place}"
        if check_saved_steps(self.directory, steps, self.checkpointer.directory, snapshot=taken):
            self._record_saved(self.saved_step)
        return True

    def _rewind(self, step: int) -> None:
        """Makes a checkpoint the newest one."""
        self.checkpointer.rewind(step)
        self.rewinds += 1
        self._record_saved(step)
        if self.snapshots.is_on:
            self.snapshots.forget(self.rewinds)

    def _restore(self, *, step: int | None = None, at_or_before: int | None = None) -> None:
        """Makes a checkpoint the present state, or the first state where none is named.

        Args:
            step: That checkpoint and no other.
            at_or_before: The newest whole one that is not newer.
        """
        is_first = step is None and at_or_before is None
        self._phase("start" if is_first else "restore")
        self.state = self.policy.state = None  # makes room for the one to come
        self.pending.clear()
        if is_first:
            self.state, self.step = self.trainer.first_state(), 0
            self.window = LossWindow()
        else:
            restored = self.checkpointer.restore(
                self.trainer.compiler.abstract_state(), step=step, at_or_before=at_or_before
            )
            self._take_up(restored, self.checkpointer.directory)
        self.saved_step, self.is_save_due = self.step, False
        self.skipped.resume_at(self.step)

    def _take_up(self, restored: Restored, place: Path) -> None:
        """Makes a restored state of this run, and its position in the data, the present ones."""
        self.state, self.step = restored.state, restored.step
        self.identity.check(restored.extra.get("run"), step=self.step, directory=place)
        data = self.rollbacks.data_after(self.step)
        self.batches.set_state(restored.extra["data"] if data is None else data)
        # A checkpoint that an older axcore wrote has none: its first line has the steps since it.
        kept = restored.extra.get("window")
        self.window = LossWindow() if kept is None else LossWindow.from_json(kept)
        self.skipped.resume_at(self.step)

    def _roll_back(self, wish: RollBack) -> None:
        """Goes back to the newest known good checkpoint that is old enough for a wish."""
        from_step, data = self.step, self.batches.get_state()
        good = self._known_good(wish, from_step - wish.steps)
        suspects = self._suspects(good or 0)
        self.rollbacks.check_budget(wish, step=from_step, good=good, suspects=suspects)
        self._restore(at_or_before=good)
        self._rewind(self.step)
        if wish.skips_data:
            self.batches.set_state(data)
        ends = {"from_step": from_step, "step": self.step}
        self.rollbacks.add(wish, **ends, data=data if wish.skips_data else None)
        self.emit(RolledBack(**ends, reason=str(wish), skips_data=wish.skips_data))

    def _known_good(self, wish: RollBack, at_or_before: int) -> int | None:
        """Returns the newest checkpoint after which a step was kept; None where none was saved."""
        self.checkpointer.wait()
        good, saved = self.checkpointer.known_good(), self.checkpointer.steps()
        found = max((step for step in good if step <= at_or_before), default=None)
        if found is None and saved:
            raise TrainingError(
                f"{wish}; no checkpoint at or before step {at_or_before} is known to be good, "
                f"there are: {', '.join(map(str, saved))}",
                where=f"step {self.step}",
                hint="lower checkpoint.every_steps or raise checkpoint.keep in the next run",
            )
        return found

    def _announce(self) -> None:
        trainer = self.trainer
        hardware = trainer.hardware
        peak = hardware.peak_flops.get(str(trainer.model.dtypes.compute))
        plan = trainer.kernel_plan()
        self.never_run = plan.never_run()
        flops = trainer.task.flops_per_unit(trainer.batch_spec)
        mesh = trainer.describe_mesh()
        units = trainer.task.metric_units()
        if is_process_zero():
            record_run_start(
                self.directory,
                step=self.step,
                changes=self.config_changes,
                hardware=hardware.name,
                mesh=mesh,
                plan=plan,
                code=self.code,
                units=units,
                is_step_kept=trainer.compiler.is_step_kept,
                init_from=render_config(self.cfg.init_from) if self.cfg.init_from else "",
                data=str(trainer.data.summary()),
                edits=[(one.origin, str(one.change)) for one in trainer.resolved.changes],
            )
        self.emit(
            RunStarted(
                directory=str(self.directory),
                step=self.step,
                max_steps=self.cfg.max_steps,
                num_params=count_params(trainer.step.specs),
                hardware=hardware.name,
                hardware_changes=trainer.resolved.mesh_rule_changes(),
                mesh=mesh,
                data=str(trainer.data.summary()),
                kernels=describe_kernels(plan),
                unit=trainer.batch_spec.unit,
                flops=flops,
                peak_flops=peak * hardware.chips if peak else None,
                config_changes=self.config_changes,
                first_weights=self._first_weights(),
                units=immutabledict(units),
            )
        )
        self.guards.on_start(trainer, self.directory)

    def _first_weights(self) -> str:
        """Returns where the first state's weights are from, and keeps it in the directory.

        A run that starts again from its first state reads nothing a second time.
        """
        source, kept = self.cfg.init_from, self.directory / FIRST_WEIGHTS_NAME
        if source is None or self.step or not is_process_zero() or kept.exists():
            return ""
        table = self.trainer.first_weights.table()
        write_whole(kept, f"{table}\n".encode())
        return table

    # -- Steps -----------------------------------------------------------------------------------

    def _train(self, stop: StopSignals) -> RollBack | None:
        """Runs steps until the end; returns the wish of a guard that ended them before."""
        writers = find_writers(self.cfg.writers) if is_process_zero() else ()
        try:
            with Writers(writers, self.directory, step=self.step) as self.metrics:
                self._run_steps(stop)
        except RollBack as wish:
            return wish.with_traceback(None)  # whose frames hold the state
        return None

    def _run_steps(self, stop: StopSignals) -> None:
        if self._is_over():
            return
        self._phase("compile")
        self._tell_policy()
        self.batches.start()
        train_step = self.trainer.compiler.compiled_step
        self.flipped.take(self.step, self.state)
        self.since = self.wall_clock = time.perf_counter()
        while not self._is_over() and not stop.should_stop(self.step):
            batch = self._next_batch()
            self._phase("step")
            self.state, metrics = train_step(self.state, batch)
            self.step += 1
            self.pending.append(metrics)
            self._bound_steps_in_flight()
            self.state = self.guards.on_state(self.step, self.state)
            self._tell_policy()
            self._after_step()
        if self.step < self.cfg.max_steps:
            self._log()
            self._save()
        if self.step != self.saved_step:
            warnings.warn(
                f"step {self.step} is not saved: the newest {self.skipped.in_a_row} steps changed "
                f"nothing; the newest checkpoint is of step {self.saved_step}",
                stacklevel=2,
            )

    def _is_over(self) -> bool:
        """Whether all steps are done, or a guard has a reason to stop before."""
        if self.step >= self.cfg.max_steps:
            return True
        self.stop_reason = self.guards.reason_to_stop(self.step)
        return bool(self.stop_reason)

    def _keep_stop_reason(self) -> None:
        """Keeps why a guard ended the run; a run that continued after all has no such file."""
        path = self.directory / STOPPED_EARLY_NAME
        if self.stop_reason and is_process_zero():
            kept = {"step": self.step, "reason": self.stop_reason}
            write_whole(path, json.dumps(kept) + "\n")
        elif is_process_zero():
            path.unlink(missing_ok=True)

    def _tell_policy(self) -> None:
        """Hands the present weights to batches that depend on them.

        At the head of `_run_steps` that is after each restore, whatever it was for; after a step
        it is after the guards, which may put another state in its place.
        """
        if self.batches.follows_policy:
            self.policy.step = self.step
            self.policy.state = self.trainer.step.own_part(self.state.model)
            self.batches.on_policy(self.policy)

    def _bound_steps_in_flight(self) -> None:
        """Waits until no more than a few steps are dispatched and not done.

        With more, the threads of several processes' devices may wait for one another for ever.
        """
        if len(self.pending) > MAX_STEPS_IN_FLIGHT:
            self.pending[-1 - MAX_STEPS_IN_FLIGHT].is_kept.block_until_ready()
            self.is_step_done = True

    def _has_no_step(self) -> bool:
        """Whether one of several processes has done no step yet; another thread asks.

        Its first step may wait for a process that computes something else, or not at all.
        """
        pending: list[Any] = self.pending[:1]
        is_done = self.is_step_done or any(one.is_kept.is_ready() for one in pending)
        return process_count() > 1 and not is_done

    def _next_batch(self) -> Any:
        self._phase("data_wait")
        batch = self.guards.on_batch(self.step + 1, next(self.batches))
        if self.step == 0 and is_process_zero():
            keep_first_batch(self.directory, batch)
        return self.trainer.batch_sharding.device_put(batch)

    def _after_step(self) -> None:
        self._report_saved()
        step, is_last = self.step, self.step == self.cfg.max_steps
        if step % self.cfg.log_every_steps == 0 or is_last:
            self._log()
            self.window = LossWindow()
        if step % self.cfg.eval_every_steps == 0 or is_last:
            self._evaluate()
        self._measure()
        self.is_save_due |= self.checkpointer.is_due(step) or is_last
        if self.is_save_due:
            self._save()
        if self.snapshots.is_due(step) and not is_last:
            self._take_snapshot()

    def _log(self) -> None:
        """Fetches the metrics since the last time, which waits for the devices.

        The window of the losses stays: where a run is stopped, the line to come has these steps
        too, as in a run that is not.
        """
        if not self.pending:
            return
        fetched: list[StepMetrics] = jax.device_get(self.pending)
        elapsed = time.perf_counter() - self.since
        self.is_step_done = True
        self.pending.clear()
        self._count_skipped(fetched)
        values = self._values(fetched, elapsed)
        check_is_there(self.directory)
        self.metrics.write(self.step, "train", values)
        self.emit(StepsDone(step=self.step, metrics=values))
        self.guards.on_metrics(self.step, values)
        self.skipped.check(self._reason_to_skip(), suspects=self._suspects())
        self.since = time.perf_counter()

    def _count_skipped(self, fetched: list[StepMetrics]) -> None:
        """Counts steps that changed nothing; one that was kept shows that the last save is good."""
        was_good = self.skipped.newest_kept > self.saved_step
        self.skipped.add(bool(metrics.is_kept) for metrics in fetched)
        if self.saved_step and self.skipped.newest_kept > self.saved_step and not was_good:
            self.checkpointer.mark_good(self.saved_step)

    def _values(self, fetched: list[StepMetrics], elapsed: float) -> dict[str, Any]:
        for metrics in fetched:
            self.window.add(metrics.losses, metrics.group_losses)
        batch = self.trainer.batch_spec
        skipped = int(jax.device_get(self.state.skipped))
        num_updates = self.step - skipped  # a skipped step does not move the schedule on
        return {
            **self.window.metrics(batch.loss_groups),
            f"{batch.unit}s_per_s": len(fetched) * batch.num_units / elapsed,
            f"wall_clock_{batch.unit}s_per_s": len(fetched) * batch.num_units / self._wall_clock(),
            "step_time_s": elapsed / len(fetched),
            "data_wait_s": self._data_wait() / len(fetched),
            "gradient_norm": float(fetched[-1].gradient_norm),
            **self.trainer.step.norms.metrics(self.step, fetched[-1].gradient_norms),
            **self.trainer.learner.rates(max(0, num_updates - 1)),
            "skipped_steps": skipped,
            **memory_metrics(self.trainer.mesh.local_devices),
            **summary_metrics(fetched[-1].summaries),
        }

    def _data_wait(self) -> float:
        """Returns the seconds waited for batches since it was last asked."""
        before, self.waited_s = self.waited_s, self.batches.waited_s
        return self.waited_s - before

    def _wall_clock(self) -> float:
        """Returns the seconds since it was last asked, saves and evaluations included."""
        before, self.wall_clock = self.wall_clock, time.perf_counter()
        return self.wall_clock - before

    def _reason_to_skip(self) -> str:
        what = "a loss, gradient or update that is not finite"
        return what + (", or a spike of the loss" if self.cfg.learner.skip_spikes.sigmas else "")

    def _suspects(self, good: int | None = None) -> str:
        """Returns what an error about numbers that are not finite says of the kernels in use.

        Args:
            good: The step before which numbers were good; that of the newest save where None.
        """
        num_steps = max(1, self.step - (self.saved_step if good is None else good))
        return suspects(self.never_run, self.trainer.hardware.chip, num_steps)

    def _evaluate(self) -> None:
        started = time.perf_counter()
        self.validation = self._evaluated()
        if self.validation:
            self.metrics.write(self.step, "validation", self.validation)
            self.emit(Evaluated(step=self.step, metrics=self.validation))
            self.guards.on_validation(self.step, self.validation)
        self.guards.on_evaluation(self.step, self.state)
        self.since += time.perf_counter() - started

    def _measure(self) -> None:
        """Logs what guards measure of the state; the time is not that of steps."""
        started = time.perf_counter()
        if measured := self.guards.measured(self.step, self.state):
            self.metrics.write(self.step, "evaluation", measured)
            self.since += time.perf_counter() - started

    def _evaluated(self) -> dict[str, float]:
        self._phase("evaluation")
        return self.trainer.evaluate(self.trainer.step.evaluated_model(self.state))

    def _save(self) -> None:
        """Saves the state, or waits for the next step that is kept.

        A state on which a step was skipped may be damaged; it takes no good one's place.
        """
        if self.step == self.saved_step or not self._is_good():
            return
        self.is_save_due = False
        self._phase("save")
        started = time.perf_counter()
        self.guards.on_save(self.step, self.state)
        self.flipped.check(self.step, self.state)
        self.checkpointer.save(self.step, self.state, self._extra())
        self.saved_step = self.step
        self._report_saved()
        self.since += time.perf_counter() - started

    def _take_snapshot(self) -> None:
        """Keeps the state in host memory, unless the newest step was skipped."""
        if not self._is_good():
            return
        self._phase("save")
        started = time.perf_counter()
        if self.step != self.saved_step:
            self.guards.on_save(self.step, self.state)
            self.flipped.check(self.step, self.state)
        self.snapshots.take(self.step, self.state, self._extra())
        self.since += time.perf_counter() - started

    def _extra(self) -> dict[str, Any]:
        window = LossWindow.from_json(self.window.as_json())
        for losses, groups in jax.device_get([(m.losses, m.group_losses) for m in self.pending]):
            window.add(losses, groups)
        return {
            "data": self.batches.get_state(),
            "run": self.identity.as_json(),
            "window": window.as_json(),
        }

    def _report_saved(self) -> None:
        """Reports the checkpoints that are on the disk by now."""
        for step in self.checkpointer.newly_committed():
            self._record_saved(step)
            self.emit(CheckpointSaved(step=step))

    def _record_saved(self, step: int) -> None:
        check_is_there(self.directory)
        if is_process_zero():
            place, went_back = self.checkpointer.directory, (self.rewinds, self.launches)
            record_saved_step(self.directory, step, place, went_back)

    def _is_good(self) -> bool:
        """Whether the newest step was kept, or at the end of training the evaluation is finite."""
        if self.pending:
            return bool(jax.device_get(self.pending[-1].is_kept))
        is_last = self.step == self.cfg.max_steps
        is_evaluated = is_last and math.isfinite(self.validation.get("loss", math.nan))
        return self.skipped.in_a_row == 0 or is_evaluated

    def _phase(self, label: Phase) -> None:
        self.emit(PhaseStarted(label))
