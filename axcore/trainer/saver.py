"""`Saver`: checkpoints and snapshots of a run; `Position`: what they save.

A checkpoint is on the disk, or in an object store; a snapshot is in host memory, for restarts
without storage.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import jax

from axcore.checkpoint import Checkpointer, MemorySnapshots, Restored
from axcore.data import Policy, PrefetchedBatches
from axcore.distributed import broadcast_object, is_process_zero
from axcore.trainer.callbacks.events import CheckpointSaved, Observers
from axcore.trainer.callbacks.metrics import LossWindow
from axcore.trainer.flipped_values import FlippedValues
from axcore.trainer.guards import Guards
from axcore.trainer.run_directory.directory import LockedRun, check_is_there
from axcore.trainer.run_directory.saved_steps import (
    check_saved_steps,
    record_saved_step,
    recorded_rewinds,
)
from axcore.trainer.step import StepMetrics

if TYPE_CHECKING:
    from axcore.trainer.trainer import Trainer


@attrs.define(kw_only=True)
class Position:
    """Where a run is between two steps: what a checkpoint saves and a rollback resets.

    Args:
        batches: The training batches, at the one for the next step.
        policy: The present weights, for batches that depend on them.
        state: A `TrainState`, but for the moment before one is restored.
        step: Steps done.
        window: The losses since the last log line that was due.
        pending: The metrics of the newest steps, which are not fetched from the devices yet.
    """

    batches: PrefetchedBatches
    policy: Policy
    state: Any = None
    step: int = 0
    window: LossWindow = attrs.field(factory=LossWindow)
    pending: list[StepMetrics] = attrs.field(factory=list)

    def release(self) -> None:
        """Free the memory of the state, for the one to come: two would not fit."""
        # All names hold the arrays; one that is left would keep them alive.
        self.state = self.policy.state = None
        self.policy.kept = {}
        self.pending.clear()

    def extra(self, identity: Any) -> dict[str, Any]:
        """Return what is saved with the state; the window with the steps that are pending."""
        # A copy: the save must not change what the next log line is made of.
        window = LossWindow.from_json(self.window.as_json())
        # One fetch for all: each transfer by itself costs a round trip to the device.
        for losses, groups in jax.device_get([(m.losses, m.group_losses) for m in self.pending]):
            window.add(losses, groups)
        return {
            "data": self.batches.get_state(),
            "run": identity.as_json(),
            "window": window.as_json(),
        }


class Saver:
    """Saves a run's position, and keeps the record of what was saved.

    Attributes:
        saved_step: The newest checkpoint that was begun, or the one that the run resumed from.
        is_due: Whether a save is due that waits for a step that is applied.
        position: What it saves.
        launches: The step that each launch went back to, once.
    """

    def __init__(
        self,
        trainer: "Trainer",
        run: LockedRun,
        guards: Guards,
        emit: Observers,
        position: Position,
    ) -> None:
        cfg = trainer.config
        self.checkpointer = Checkpointer.for_run(cfg.checkpoint, run.path)
        self.snapshots = MemorySnapshots(cfg.snapshots, run.identity.as_json())
        self.flipped = FlippedValues(trainer.step.specs)
        self.saved_step = 0
        self.is_due = False
        self._directory = run.path
        self._identity = run.identity
        self._guards = guards
        self._emit = emit
        self.position = position
        # Asked together by all processes: the number is part of
        # the tag of snapshots, so it must be the same in all.
        self._num_resets, self.launches = broadcast_object(
            "reading rewinds", lambda: recorded_rewinds(run.path)
        )

    def save(self) -> None:
        """Save a checkpoint; a guard that raises keeps it from being saved."""
        step, state = self.position.step, self.position.state
        # First: a guard that raises has decided about this
        # save, and the next one comes when it is due.
        self.is_due = False
        # Checked before it is written: a damaged state would take the place of a good one, as only
        # so many checkpoints are kept.
        self._guards.on_save(step, state)
        self.flipped.check(step, state)
        self.checkpointer.save(step, state, self.position.extra(self._identity))
        # When begun, not when committed: `count` marks the step
        # good by it, and the mark waits for the commit anyway.
        self.saved_step = step
        # `save` has waited for the one before it.
        self.report()

    def take_snapshot(self) -> None:
        """Keep the state in host memory; what was saved just now was checked by that."""
        step, state = self.position.step, self.position.state
        # A step that was saved just now was checked a moment ago.
        if step != self.saved_step:
            self._guards.on_save(step, state)
            self.flipped.check(step, state)
        self.snapshots.take(step, state, self.position.extra(self._identity))

    def report(self) -> None:
        """Report the checkpoints that are on the disk by now."""
        # On the training thread, not on the one that saves: observers need no locks.
        for step in self.checkpointer.newly_committed():
            self.record(step)
            self._emit(CheckpointSaved(step=step))

    def record(self, step: int) -> None:
        """Record which checkpoint is the newest, so that losing it is noticed."""
        # A run directory that was moved away would otherwise be made again, with this one file.
        check_is_there(self._directory)
        if is_process_zero():
            went_back = (self._num_resets, self.launches)
            record_saved_step(self._directory, step, self.checkpointer.directory, went_back)

    def finish(self) -> None:
        """Wait until all is on the disk; the snapshots of a state that is saved are deleted."""
        self.checkpointer.wait()
        self.report()
        # Not where a stop came between two saves: the snapshot is then the newest state there is.
        if self.position.step == self.saved_step:
            self.snapshots.delete()

    def open_snapshots(self) -> None:
        """Look for snapshots of earlier starts; those before the newest reset are not ours."""
        if self.snapshots.is_on:
            self.snapshots.open(self._num_resets)

    def forget_later_snapshots(self) -> None:
        """Delete the snapshots after the present step: the run makes these steps again."""
        if self.snapshots.is_on:
            self.snapshots.delete_after(self.position.step)

    def newest_saved(self) -> int | None:
        """Return the newest checkpoint, None where none was saved; warns where one is lost.

        Raises:
            CheckpointError: The run saved some, and there is none.
        """
        saved = self.checkpointer.steps()
        self._has_newest(saved)
        return max(saved, default=None)

    def restore_snapshot(self, template: Any) -> Restored | None:
        """Return the newest state in host memory, if it is newer than all checkpoints."""
        # A snapshot is restored only if it is newer than the newest checkpoint.
        self.saved_step = max(self.checkpointer.steps(), default=0)
        return self.snapshots.restore(template, newer_than=self.saved_step)

    def check_saved(self) -> None:
        """Check the record of saved steps in a run that resumes from a snapshot."""
        steps = self.checkpointer.steps()
        taken = f"the snapshot of step {self.position.step} in {self.snapshots.directory}"
        if self._has_newest(steps, snapshot=taken):
            self.record(self.saved_step)

    def _has_newest(self, steps: Sequence[int], snapshot: str = "") -> bool:
        # By process 0, for all: the others may not see the run directory.
        place = self.checkpointer.directory
        check = partial(check_saved_steps, self._directory, steps, place, snapshot=snapshot)
        return broadcast_object("checking saved steps", check)

    def reset_to(self, step: int) -> None:
        """Make a checkpoint the newest one, and set later ones aside."""
        self.checkpointer.reset_to(step)
        self._num_resets += 1
        # Recorded before snapshots are deleted: a process that is killed in between finds those of
        # another count, and leaves them alone.
        self.record(step)
        if self.snapshots.is_on:
            self.snapshots.delete_all(self._num_resets)

    def check_is_own(self, restored: Restored, place: Path) -> None:
        """Check that what was restored is of this run."""
        self._identity.check(restored.extra.get("run"), step=restored.step, directory=place)
