"""`Recovery`: where a run starts, which steps were applied, and when it goes back to a checkpoint.

rollbacks.jsonl    one JSON object a line for each: time, from_step, step, reason, data

`data` is the position in the data with which the older step continued, null where it took the same
batches again. A run that resumes at that step goes there, too.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from axcore.trainer.trainer import Trainer

from functools import cached_property

from axcore.checkpoint import Restored
from axcore.distributed import broadcast_object, is_process_zero
from axcore.errors import TrainingError
from axcore.plugins import Kernel
from axcore.trainer.callbacks.events import Observers, PhaseStarted, RolledBack
from axcore.trainer.callbacks.metrics import LossWindow
from axcore.trainer.guards import RollbackRequest
from axcore.trainer.run_directory.json_lines import append_json_line, read_json_lines
from axcore.trainer.saver import Saver
from axcore.trainer.step import StepMetrics

ROLLBACKS_NAME = "rollbacks.jsonl"


class Recovery:
    """Where a run starts, which of its steps were applied, and what it goes back to.

    Attributes:
        skipped: The steps that changed nothing.
    """

    def __init__(self, trainer: "Trainer", directory: Path, saver: Saver, emit: Observers) -> None:
        cfg = trainer.config.rollback
        self.skipped = SkippedSteps(
            max_skipped=cfg.max_skipped_steps,
            max_in_a_row=cfg.max_skipped_in_a_row,
            window_steps=cfg.window_steps,
        )
        self._rollbacks = Rollbacks(
            directory, budget=cfg.max_rollbacks, window_steps=cfg.window_steps
        )
        self._trainer = trainer
        self._saver = saver
        self._position = saver.position
        self._emit = emit

    def resume(self, from_step: int | None, launch: str) -> None:
        """Make the state that training starts from the present one.

        Args:
            from_step: The checkpoint to resume from, 0 for the start; by default the newest.
            launch: Which launch this start is of; only the first start of one goes back.
        """
        saver = self._saver
        # Always, also where a checkpoint is asked for: this is a meeting of all processes.
        saver.open_snapshots()
        # A launch restarts its processes with the same arguments. Only the first of
        # them goes back, or each crash would throw away all that was trained since.
        if from_step is not None and from_step != saver.launches.get(launch):
            self._restore(step=from_step or None)
            # Noted before `reset_to`, which records both in one
            # file: a crash between them must not go back twice.
            saver.launches |= {launch: from_step} if launch else {}
            saver.reset_to(from_step)
        elif not self._resume_from_snapshot():
            self._restore(at_or_before=saver.newest_saved())
        # Whatever was restored, snapshots after it are of
        # steps that will be made again with other numbers.
        saver.forget_later_snapshots()

    def rollback(self, request: RollbackRequest) -> None:
        """Go back to the newest known good checkpoint that is old enough for a request."""
        position, from_step = self._position, self._position.step
        # The data's position before the restore, which overwrites it.
        data = position.batches.get_state()
        good = self._known_good(request, from_step - request.steps)
        suspects = self.suspects(good or 0)
        # Before anything is restored or quarantined: a run
        # that gives up leaves the directory as it found it.
        self._rollbacks.check_budget(request, step=from_step, good=good, suspects=suspects)
        self._restore(at_or_before=good)
        self._saver.reset_to(position.step)
        if request.skips_data:
            # After `_restore`, which sets the checkpoint's own position.
            position.batches.set_state(data)
        ends = {"from_step": from_step, "step": position.step}
        # Recorded after `reset_to`: without the record a run that is killed in
        # between resumes from the older step, and only reads the bad data once more.
        self._rollbacks.add(request, **ends, data=data if request.skips_data else None)
        self._emit(RolledBack(**ends, reason=str(request), skips_data=request.skips_data))

    def count(self, fetched: Iterable[StepMetrics]) -> None:
        """Count skipped steps; one that was applied shows that the last save is good."""
        saved, skipped = self._saver.saved_step, self.skipped
        was_good = skipped.newest_applied > saved
        skipped.add(bool(metrics.is_applied) for metrics in fetched)
        # `not was_good`: once for each save, at the first step that was applied after it.
        if saved and skipped.newest_applied > saved and not was_good:
            self._saver.checkpointer.mark_good(saved)

    def check(self) -> None:
        """Check that not too many steps were skipped.

        Raises:
            RollbackRequest: Too many in a row.
            TrainingError: Too many in the window.
        """
        what = "a loss, gradient or update that is not finite"
        if self._trainer.config.learner.skip_spikes.sigmas:
            what += ", or a spike of the loss"
        self.skipped.check(what, suspects=self.suspects())

    def suspects(self, good: int | None = None) -> str:
        """Return what an error about numbers that are not finite says about the kernels in use.

        Args:
            good: The step before which numbers were good; that of the newest save where None.
        """
        before = self._saver.saved_step if good is None else good
        num_steps = max(1, self._position.step - before)
        return _suspects(self._never_run, self._trainer.hardware.chip, num_steps)

    @cached_property
    def _never_run(self) -> tuple[Kernel, ...]:
        return self._trainer.kernel_plan().never_run()

    def _restore(self, *, step: int | None = None, at_or_before: int | None = None) -> None:
        """Make a checkpoint the present state, or the first state where none is named.

        Args:
            step: That checkpoint and no other.
            at_or_before: The newest undamaged one that is not newer.
        """
        saver, position = self._saver, self._position
        is_first = step is None and at_or_before is None
        self._emit(PhaseStarted("start" if is_first else "restore"))
        # The state goes before the new one comes: devices of a large model have no room for two.
        position.release()
        if is_first:
            position.state, position.step = self._trainer.first_state(), 0
            position.window = LossWindow()
        else:
            restored = saver.checkpointer.restore(
                self._trainer.compiler.abstract_state(), step=step, at_or_before=at_or_before
            )
            self._resume_at(restored, saver.checkpointer.directory)
        saver.saved_step, saver.is_due = position.step, False
        self.skipped.resume_at(position.step)

    def _resume_from_snapshot(self) -> bool:
        """Resume from the newest state in host memory, if it is newer than all checkpoints."""
        saver = self._saver
        if not saver.snapshots.is_on:
            return False
        self._emit(PhaseStarted("restore"))
        restored = saver.restore_snapshot(self._trainer.compiler.abstract_state())
        if restored is None:
            return False
        self._resume_at(restored, saver.snapshots.directory)
        saver.check_saved()
        return True

    def _resume_at(self, restored: Restored, place: Path) -> None:
        """Make a restored state of this run, and its position in the data, the present ones."""
        position = self._position
        position.state, position.step = restored.state, restored.step
        self._saver.check_is_own(restored, place)
        # After a rollback that skipped data, the position that the checkpoint has is the old one.
        data = self._rollbacks.data_after(position.step)
        # The record wins: it is newer than the checkpoint.
        position.batches.set_state(restored.extra["data"] if data is None else data)
        # A checkpoint that an older axcore wrote has none: its first line has the steps since it.
        window = restored.extra.get("window")
        position.window = LossWindow() if window is None else LossWindow.from_json(window)
        self.skipped.resume_at(position.step)

    def _known_good(self, request: RollbackRequest, at_or_before: int) -> int | None:
        """Return the newest checkpoint after which a step was applied; None where none was saved.

        Only an applied step after it shows that a saved state is good: from a damaged one, whose
        values may all be finite, every step is skipped.
        """
        checkpointer = self._saver.checkpointer
        # A save or a mark in flight may be the very step that is looked for.
        checkpointer.wait()
        good, saved = checkpointer.known_good(), checkpointer.steps()
        found = max((step for step in good if step <= at_or_before), default=None)
        if found is None and saved:
            raise TrainingError(
                f"{request}; no checkpoint at or before step {at_or_before} is known to be good, "
                f"there are: {', '.join(map(str, saved))}",
                where=f"step {self._position.step}",
                hint="lower checkpoint.every_steps or raise checkpoint.keep in the next run",
            )
        return found


def _suspects(kernels: Sequence[Kernel], chip: str, num_steps: int) -> str:
    """Return what an error about numbers that are not finite adds to its hint.

    Args:
        kernels: Those in use that never ran on the chip.
        chip: Its name.
        num_steps: Steps since the newest checkpoint.
    """
    if not kernels:
        return ""
    names = ", ".join(f"{one.key} (plugin {one.plugin})" for one in kernels)
    return (
        f". These kernels never ran on {chip}: {names}. Add --reference-steps {num_steps} to the "
        "command, to find out whether one of them is wrong"
    )


class Rollbacks:
    """The rollbacks of one run, over all its starts."""

    def __init__(self, directory: Path, *, budget: int, window_steps: int) -> None:
        self._path = directory / ROLLBACKS_NAME
        self._budget = budget
        self._window_steps = window_steps
        # Read once, by process 0: all processes must count the same rollbacks.
        self._done = broadcast_object("reading rollbacks", lambda: read_json_lines(self._path))

    def check_budget(
        self, request: RollbackRequest, *, step: int, good: int | None, suspects: str = ""
    ) -> None:
        """Check that the run may go back once more.

        Args:
            request: Who asks, and why.
            step: The present step.
            good: The step that it would go back to, None for the start.
            suspects: What the hint adds about kernels.

        Raises:
            TrainingError: It did so too often in the window.
        """
        # By steps, not by time: a slow run may go back as often as a fast one.
        recent = [one for one in self._done if one["from_step"] > step - self._window_steps]
        if len(recent) < self._budget:
            return
        raise TrainingError(
            f"{request}; the run went back {len(recent)} times in the last {self._window_steps} "
            f"steps, and rollback.max_rollbacks={self._budget}",
            where=f"step {step}",
            hint="lower learner.schedule.peak, or look at the data of these steps; "
            f"`axcore train --from-step {good or 0}` resumes from the newest good checkpoint"
            f"{suspects}",
        )

    def add(self, request: RollbackRequest, *, from_step: int, step: int, data: Any) -> None:
        """Record that the run went back from a step to an older one.

        Args:
            request: Who asked, and why.
            from_step: The newest step that is undone.
            step: The step that training resumes from.
            data: The position in the data that it continues with; None for that of the checkpoint.
        """
        time = datetime.now(UTC).isoformat(timespec="seconds")
        one = {"time": time, "from_step": from_step, "step": step, "reason": str(request)}
        # In memory too, as the file is not read again within this start.
        self._done.append({**one, "data": data})
        if is_process_zero():
            append_json_line(self._path, self._done[-1])

    def data_after(self, step: int) -> Any:
        """Return where the data continues after a step that the run went back to, None if not."""
        # The last entry: a run may go back to one step several times, each time with newer data.
        found = [one["data"] for one in self._done if one["step"] == step]
        return found[-1] if found else None


class SkippedSteps:
    """Count the steps of a run that were applied, and those that were skipped.

    Attributes:
        newest_applied: The newest step that was applied, or the step that the run resumed from.
        in_a_row: How many steps were skipped since.
    """

    def __init__(self, *, max_skipped: int, max_in_a_row: int, window_steps: int) -> None:
        self.newest_applied = 0
        self.in_a_row = 0
        self._max_skipped = max_skipped
        self._max_in_a_row = max_in_a_row
        self._window: deque[bool] = deque(maxlen=window_steps)

    def resume_at(self, step: int) -> None:
        """Follow from another step on; those of the window still count."""
        # The window is kept across a rollback, so that a run
        # that rolls back again and again runs out of it.
        self.newest_applied, self.in_a_row = step, 0

    def add(self, are_applied: Iterable[bool]) -> None:
        """Take the next steps in."""
        for is_applied in are_applied:
            self._window.append(is_applied)
            step = self.newest_applied + self.in_a_row + 1
            self.in_a_row = 0 if is_applied else self.in_a_row + 1
            self.newest_applied = step if is_applied else self.newest_applied

    def check(self, what: str, *, suspects: str = "") -> None:
        """Check that not too many steps were skipped.

        Args:
            what: Why steps are skipped.
            suspects: What the hint adds about kernels.

        Raises:
            RollbackRequest: Too many in a row: the state or the data at hand are at fault.
            TrainingError: Too many in the window.
        """
        step = self.newest_applied + self.in_a_row
        # Steps in a row are checked first, because a rollback may help there. Steps spread over
        # a window point at wrong settings, which a rollback would meet again.
        if self.in_a_row > self._max_in_a_row:
            raise RollbackRequest(
                f"{self.in_a_row} steps in a row had {what}, which is more than "
                f"rollback.max_skipped_in_a_row={self._max_in_a_row}",
                steps=self.in_a_row,
            )
        skipped = self._window.count(False)
        if skipped > self._max_skipped:
            raise TrainingError(
                f"{skipped} of the last {len(self._window)} steps had {what}, which is more than "
                f"rollback.max_skipped_steps={self._max_skipped}; none of them changed a parameter",
                where=f"step {step}",
                hint=f"lower learner.schedule.peak, or raise rollback.max_skipped_steps{suspects}",
            )
