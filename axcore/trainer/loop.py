"""`TrainLoop`: the loop. It trains, logs, evaluates and saves in one locked run directory."""

import json
import math
import signal
import warnings
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import jax

from axcore.config import immutabledict, render_config
from axcore.data import Policy, PrefetchedBatches
from axcore.distributed import is_process_zero, process_count
from axcore.module import count_params
from axcore.trainer.callbacks.events import (
    Evaluated,
    Observers,
    PhaseStarted,
    RunFinished,
    RunStarted,
    StepsDone,
)
from axcore.trainer.callbacks.metrics import LossWindow
from axcore.trainer.guards import Guards, RollbackRequest
from axcore.trainer.metric_log import MetricLog
from axcore.trainer.recovery import Recovery
from axcore.trainer.run_directory.directory import LockedRun, check_is_there
from axcore.trainer.run_directory.run_history import (
    describe_kernels,
    keep_first_batch,
    record_run_start,
)
from axcore.trainer.saver import Position, Saver
from axcore.trainer.step import TrainState
from axcore.trainer.stop_signals import TERMINATED, StopSignals
from axcore.whole_files import write_whole

if TYPE_CHECKING:
    from axcore.trainer.trainer import Trainer


_INITIAL_WEIGHTS_NAME = "initial_weights.txt"
_STOPPED_EARLY_NAME = "stopped_early.json"


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
    """One run of a trainer in a locked directory, from its newest checkpoint if it has one.

    `_train` is the recipe; `Recovery` decides where it begins, `MetricLog` writes what steps
    report, and `Saver` what they made.
    """

    def __init__(
        self,
        trainer: "Trainer",
        batches: PrefetchedBatches,
        run: LockedRun,
        observers: Observers,
        guards: Guards,
    ) -> None:
        self.trainer = trainer
        self.cfg = trainer.config
        self.run_directory = run
        self.emit = observers
        self.guards = guards
        policy = Policy(
            trainer.model,
            jit=trainer.compiler.jitted_policy,
            kernels=trainer.compiler.kernel_policy,
            specs=trainer.step.own_specs,
        )
        self.at = Position(batches=batches, policy=policy)
        self.log = MetricLog(trainer, run.path, self.at)
        self.saver = Saver(trainer, run, guards, observers, self.at)
        self.recovery = Recovery(trainer, run.path, self.saver, observers)
        self.validation: dict[str, float] = {}
        self.stop_reason = ""

    def run(
        self, *, from_step: int | None = None, launch: str = "", returns_when_stopped: bool = False
    ) -> TrainResult:
        """Train until all steps are done or a signal asks to stop, and save where it ends.

        Args:
            from_step: The checkpoint to resume from, 0 for the start; by default the newest.
            launch: Which launch this start is of; only the first start of one goes back.
            returns_when_stopped: Whether a request to stop makes this return.

        Raises:
            KeyboardInterrupt: Ctrl-C asked to stop.
            SystemExit: SIGTERM, SIGHUP or a preemption notice did; its code is 143.
        """
        # Left in the reverse order: signals first, so that Ctrl-C acts as usual
        # while the rest closes; the checkpointer last, since it may wait for a save.
        with (
            self.saver.checkpointer,
            closing(self.saver.snapshots),
            closing(self.at.batches),
            StopSignals(notice=self.cfg.preemption_notice, may_end=self._has_no_step) as stop,
        ):
            # Before `announce`, which reports the step that the run begins at.
            self.recovery.resume(from_step, launch)
            announce(self.trainer, self.run_directory, self.emit, step=self.at.step)
            # After it: guards read files that belong to the present history.
            self.guards.on_start(self.trainer, self.run_directory.path)
            while (request := self._train_until_rollback(stop)) is not None:
                self.recovery.rollback(request)
            self.emit(PhaseStarted("save"))
            # Inside, while signals are still caught: a
            # second SIGTERM must not cut off the last save.
            self.saver.finish()
            # A collective, asked by every process even where it
            # is not needed, or those that need it would wait.
            stopped_by = None if returns_when_stopped else stop.agreed()
        return self._finish(stopped_by)

    def _train_until_rollback(self, stop: StopSignals) -> RollbackRequest | None:
        """Train to the end; returns the request for a rollback where one ends it before."""
        try:
            with self.log.opened():
                self._train(stop)
        except RollbackRequest as request:
            return request.with_traceback(None)  # whose frames hold the state
        return None

    def _train(self, stop: StopSignals) -> None:
        """Train, log, evaluate and save, step by step."""
        # A run that is complete starts no data workers and compiles nothing.
        if self._is_over():
            return
        at, log, saver = self.at, self.log, self.saver
        self.emit(PhaseStarted("compile"))
        self._update_policy()  # after each restore, whatever it was for
        at.batches.start()
        train_step = self.trainer.compiler.compiled_step
        # The state that training begins from, while it is there: the first step takes its memory.
        saver.flipped.take(at.step, at.state)
        log.timer.start()
        while not self._is_over() and not stop.should_stop(at.step):
            batch = self._next_batch()
            self.emit(PhaseStarted("step"))
            # The old state is donated: its buffers are the new one's.
            # Whatever must see the old state has to do so before this line.
            at.state, metrics = train_step(at.state, batch)
            # Counted when dispatched, not when done: the devices are a step or more behind,
            # and waiting for them here would leave them idle while the next batch is made.
            at.step += 1
            log.add(metrics)
            # Before metrics are fetched, so that a guard that
            # only adds to the queue of the devices costs no wait.
            at.state = self.guards.on_state(at.step, at.state)
            self._update_policy()  # after guards, which may put another state in its place
            # Looks whether a save has ended, and does not wait for it.
            saver.report()
            is_last = at.step == self.cfg.max_steps
            if at.step % self.cfg.logging.every_steps == 0 or is_last:
                self._log()
                # Also where nothing was fetched: windows end at
                # the same steps in a run that was interrupted.
                at.window = LossWindow()
            if at.step % self.cfg.eval_every_steps == 0 or is_last:
                self._evaluate()
            self._measure()
            # `|=`: a save that was put off because a step was skipped stays due.
            saver.is_due |= saver.checkpointer.is_due(at.step) or is_last
            if saver.is_due:
                self._save()
            # The last step is saved to the disk anyway.
            if saver.snapshots.is_due(at.step) and not is_last:
                self._take_snapshot()
        # It was stopped: what it did since the last log line is worth a line and a save.
        if at.step < self.cfg.max_steps:
            self._log()
            self._save()
        if at.step != saver.saved_step:
            warnings.warn(
                f"step {at.step} is not saved: the newest {self.recovery.skipped.in_a_row} steps "
                f"changed nothing; the newest checkpoint is of step {saver.saved_step}",
                stacklevel=2,
            )

    def _is_over(self) -> bool:
        """Whether all steps are done, or a guard has a reason to stop before."""
        # Without asking the guards: all steps done is complete, and needs no other reason.
        if self.at.step >= self.cfg.max_steps:
            return True
        self.stop_reason = self.guards.reason_to_stop(self.at.step)
        return bool(self.stop_reason)

    def _update_policy(self) -> None:
        """Give the present weights to batches that depend on them."""
        at = self.at
        if at.batches.follows_policy:
            at.policy.step = at.step
            at.policy.state = self.trainer.step.own_part(at.state.model)
            at.policy.kept = self.trainer.step.kept_part(at.state.model)
            at.batches.on_policy(at.policy)

    def _next_batch(self) -> Any:
        self.emit(PhaseStarted("data_wait"))
        batch = self.guards.on_batch(self.at.step + 1, next(self.at.batches))
        # Kept for `axcore` to look at later: most faults of data show in the first batch.
        if self.at.step == 0 and is_process_zero():
            keep_first_batch(self.run_directory.path, batch)
        return self.trainer.batch_sharding.device_put(batch)

    def _log(self) -> None:
        """Write a log line of the steps since the last one, which waits for the devices."""
        # After a log step at the very end there may be nothing new.
        fetched = self.log.fetch()
        if not fetched:
            return
        # Before the line is written: a rollback must find
        # the last save marked as good by these very steps.
        self.recovery.count(fetched)
        values = self.log.line(fetched, self.at.batches.waited_s)
        # Written before guards see it: the line that made one roll back is what people look for.
        self.log.write("train", values)
        self.emit(StepsDone(step=self.at.step, metrics=values))
        self.guards.on_metrics(self.at.step, values)
        # After the guards, whose reasons say more than that steps were skipped.
        self.recovery.check()
        self.log.timer.next_line()

    def _evaluate(self) -> None:
        with self.log.timer.paused():
            self.validation = self._evaluated()
            if self.validation:
                self.log.write("validation", self.validation)
                self.emit(Evaluated(step=self.at.step, metrics=self.validation))
                self.guards.on_validation(self.at.step, self.validation)
            self.guards.on_evaluation(self.at.step, self.at.state)

    def _evaluated(self) -> dict[str, float]:
        self.emit(PhaseStarted("evaluation"))
        return self.trainer.evaluate(self.trainer.step.evaluated_model(self.at.state))

    def _measure(self) -> None:
        """Log what guards measure of the state."""
        with self.log.timer.paused():
            if measured := self.guards.measured(self.at.step, self.at.state):
                self.log.write("evaluation", measured)

    def _save(self) -> None:
        """Save the state, or wait for the next step that is applied.

        A state on which a step was skipped may be damaged; it takes no good one's place.
        """
        # The same step twice is refused by the checkpointer,
        # and a stop right after a save comes here.
        if self.at.step != self.saver.saved_step and self._is_good():
            self.emit(PhaseStarted("save"))
            with self.log.timer.paused():
                self.saver.save()

    def _take_snapshot(self) -> None:
        """Keep the state in host memory, unless the newest step was skipped."""
        if self._is_good():
            self.emit(PhaseStarted("save"))
            with self.log.timer.paused():
                self.saver.take_snapshot()

    def _is_good(self) -> bool:
        """Whether the newest step was applied, or the evaluation at the end is finite."""
        if self.at.pending:
            # Waits for the devices, but only at a step that
            # is saved, which reads the full state anyway.
            return bool(jax.device_get(self.at.pending[-1].is_applied))
        is_last = self.at.step == self.cfg.max_steps
        # At the very end no step follows that could show the state to be good; an evaluation can.
        is_evaluated = is_last and math.isfinite(self.validation.get("loss", math.nan))
        return self.recovery.skipped.in_a_row == 0 or is_evaluated

    def _has_no_step(self) -> bool:
        """Whether one of several processes has done no step yet; another thread asks.

        Its first step may wait for a process that computes something else, or not at all.
        """
        # In a run of one process Ctrl-C during the first step is handled as soon as Python is back.
        return process_count() > 1 and not self.log.has_step()

    def _finish(self, stopped_by: signal.Signals | None) -> TrainResult:
        """Report how the run ended, or end the process as the signal that stopped it does."""
        at, directory = self.at, self.run_directory.path
        # First: a directory that was moved away meanwhile
        # would be made again, half of it, by what follows.
        check_is_there(directory)
        is_complete = at.step >= self.cfg.max_steps or bool(self.stop_reason)
        _keep_stop_reason(directory, at.step, self.stop_reason)
        # A run that resumes at its end evaluates again, for its
        # result. Not where a signal wants the process gone.
        if is_complete and not self.validation and stopped_by is None:
            self.validation = self._evaluated()
        self.emit(PhaseStarted("idle"))
        self.emit(RunFinished(step=at.step, is_complete=is_complete, stop_reason=self.stop_reason))
        if stopped_by is not None:
            # A subclass of KeyboardInterrupt would not end the process as Ctrl-C does, and a loop
            # of a shell around it would continue.
            is_interrupt = stopped_by is signal.SIGINT
            # Raised after everything is closed and on the disk.
            raise KeyboardInterrupt if is_interrupt else SystemExit(TERMINATED)
        return TrainResult(
            at.step,
            at.state,
            self.validation,
            is_complete,
            units=self.trainer.task.metric_units(),
            stop_reason=self.stop_reason,
        )


def _keep_stop_reason(directory: Path, step: int, reason: str) -> None:
    """Keep why a guard ended the run; a run that continued after all has no such file."""
    if not is_process_zero():
        return
    path = directory / _STOPPED_EARLY_NAME
    if reason:
        write_whole(path, json.dumps({"step": step, "reason": reason}) + "\n")
    else:
        path.unlink(missing_ok=True)


def announce(trainer: "Trainer", run: LockedRun, emit: Observers, *, step: int) -> None:
    """Record and report what is trained, and on what."""
    hardware = trainer.hardware
    peak = hardware.peak_flops.get(str(trainer.model.dtypes.compute))
    plan = trainer.kernel_plan()
    flops = trainer.task.flops_per_unit(trainer.batch_spec)
    mesh = trainer.describe_mesh()
    units = trainer.task.metric_units()
    init_from = trainer.config.init_from
    if is_process_zero():
        record_run_start(
            # Process 0 writes; the values above come from calls that all processes make.
            run.path,
            step=step,
            changes=run.changes,
            hardware=hardware.name,
            mesh=mesh,
            plan=plan,
            code=run.code,
            units=units,
            is_step_kept=trainer.compiler.is_step_kept,
            init_from=render_config(init_from) if init_from else "",
            data=str(trainer.data.summary()),
            edits=[(one.origin, str(one.change)) for one in trainer.resolved.changes],
        )
    emit(
        RunStarted(
            directory=str(run.path),
            step=step,
            max_steps=trainer.config.max_steps,
            num_params=count_params(trainer.step.specs),
            hardware=hardware.name,
            hardware_changes=trainer.resolved.mesh_rule_changes(),
            mesh=mesh,
            data=str(trainer.data.summary()),
            kernels=describe_kernels(plan),
            unit=trainer.batch_spec.unit,
            flops=flops,
            peak_flops=peak * hardware.chips if peak else None,
            config_changes=run.changes,
            initial_weights=_initial_weights(trainer, run.path, step),
            units=immutabledict(units),
            watched=tuple(trainer.task.watched_metrics),
        )
    )


def _initial_weights(trainer: "Trainer", directory: Path, step: int) -> str:
    """Return where the first state's weights are from, and keep it in the directory.

    A run that starts again from its first state reads nothing a second time.
    """
    kept = directory / _INITIAL_WEIGHTS_NAME
    # `kept.exists()`: going back to the first state is not a second reading.
    if trainer.config.init_from is None or step or not is_process_zero() or kept.exists():
        return ""
    table = trainer.initial_weights.table()
    write_whole(kept, f"{table}\n".encode())
    return table
