"""Write steps in the background, one at a time, and delete old ones.

`save.py` writes a step and reads it back; after that process 0 marks good steps, quarantines
damaged ones and deletes old ones. None of that is worth ending a run: what fails is a warning, and
is tried again after the next save.
"""

import collections
import functools
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import Any

import jax

from axcore.checkpoint.leaves import name_arrays
from axcore.checkpoint.manifest import check_extra
from axcore.checkpoint.reader import StepStatus
from axcore.checkpoint.save import RetryPolicy, StepSave
from axcore.checkpoint.storage import (
    CheckpointWarning,
    RunStorage,
    StepStorage,
    StorageLock,
    describe_free_space,
)
from axcore.distributed import broadcast_object, process_count, process_index
from axcore.errors import CheckpointError

THREADS_START_AT_EXIT = not (3, 12) <= sys.version_info < (3, 12, 3)
"""Whether a save can be finished while the interpreter ends; it starts threads for checksums.

Python 3.12.0 to 3.12.2 forbid that (https://github.com/python/cpython/issues/113964).
"""


class CheckpointWriter:
    """The writer of one storage, which keeps the newest `keep` steps and the newest good one."""

    def __init__(
        self, steps: RunStorage, status: StepStatus, *, keep: int | None, retry_policy: RetryPolicy
    ) -> None:
        self._steps = steps
        self._status = status
        self._retry_policy = retry_policy
        self._retention = _Retention(steps, status, keep=keep)
        self._lock: StorageLock | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._pending: list[Future[None]] = []
        self._last_started: int | None = None
        # A deque: the worker thread appends while the training thread pops, and both are atomic.
        self._committed: collections.deque[int] = collections.deque()

    def start(self, step: int, state: Any, extra: dict[str, Any]) -> None:
        """Start to save a state, after the one before is committed; see `Checkpointer.save`."""
        # One save at a time: two would hold the state in host memory twice.
        self.wait()
        arrays = name_arrays(state)
        # All checks that can refuse come before the lock and the first byte, so that
        # a wrong call leaves no staging directory.
        check_extra(extra)
        self._check_order(step)
        _check_are_shared(arrays)
        worker = self._lock_for_writing()
        broadcast_object("looking for later checkpoints", lambda: self._warn_of_later_steps(step))
        save = StepSave(self._steps, step, arrays, extra, self._retry_policy)
        # Only now: a save that could not start does not
        # count against a second try of the same step.
        self._last_started = step
        self._pending.append(worker.submit(self._finish, save))
        # Joined at once, or the pool would be asked for threads when the interpreter ends.
        if not THREADS_START_AT_EXIT:
            _warn_of_old_python()
            wait_for(self._pending)

    def mark_good(self, step: int) -> None:
        """Start to mark a step as good; see `Checkpointer.mark_good`."""
        # On the worker thread, so after the save in flight: `step` may be that one.
        mark = functools.partial(self._retention.mark_good, step)
        worker = self._lock_for_writing()
        self._pending.append(worker.submit(broadcast_object, "marking a good checkpoint", mark))

    def reset_to(self, step: int) -> None:
        """Quarantine the committed steps after `step`; see `Checkpointer.reset_to`."""
        self.wait()
        self._lock_for_writing()
        broadcast_object("going back to a checkpoint", lambda: self._quarantine_after(step))
        # Set back, so that the steps after it can be saved a second time.
        self._last_started = step

    def wait(self) -> None:
        """Wait until the save in flight is committed, and raise its failure once."""
        # Emptied before anything is raised, so that each
        # failure is raised once and `close` can still finish.
        pending, self._pending = self._pending, []
        # All of them first: a mark that is queued behind a
        # failed save must not run while the caller cleans up.
        wait_for(pending)
        for one in pending:
            one.result()

    def newly_committed(self) -> tuple[int, ...]:
        """Return the steps that were committed since this was last asked, oldest first."""
        return tuple(self._committed.popleft() for _ in range(len(self._committed)))

    def close(self) -> None:
        """Wait, then give up the right to write."""
        try:
            self.wait()
        finally:
            worker, self._worker = self._worker, None
            lock, self._lock = self._lock, None
            # The lock last: a mark may still be written on the worker thread.
            if worker is not None:
                # `shutdown` waits; the flock goes after the last write.
                worker.shutdown()
            if lock is not None:
                lock.release()

    def _quarantine_after(self, step: int) -> None:
        # The newest first: a process killed on the way leaves a history without holes.
        for later in reversed(self._steps.at_or_after(step + 1)):
            self._steps.quarantine(later)

    def _check_order(self, step: int) -> None:
        if step < 0:
            what = f"step {step} is negative"
        elif self._last_started is not None and step <= self._last_started:
            what = f"step {step} cannot be saved after step {self._last_started}"
        else:
            return
        raise CheckpointError(
            what, where=str(self._steps.root), hint="save each step once, in rising order"
        )

    def _lock_for_writing(self) -> ThreadPoolExecutor:
        """Return the worker thread; make the directory and lock it the first time."""
        if self._worker is None:
            # Process 0 alone takes it, since all processes write into one directory under its name.
            broadcast_object("locking the checkpoints", self._take_lock)
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
            _close_at_exit().add(self)
        return self._worker

    def _take_lock(self) -> None:
        try:
            self._lock = self._steps.lock()
            # Found while this run restored, when it had no right to rename anything yet.
            self._retention.quarantine_damaged()
        except OSError as error:
            raise CheckpointError(
                f"checkpoints cannot be written: {error}", where=str(self._steps.root)
            ) from error

    def _warn_of_later_steps(self, step: int) -> None:
        try:
            later = self._steps.at_or_after(step)
        # Only a warning depends on the listing here, and `start` runs on the thread that trains.
        except OSError as error:  # the save tries again, and quarantines them
            what = f"what is there after step {step} is not known: {error}"
            warnings.warn(what, CheckpointWarning, stacklevel=4)
            return
        if later:
            warnings.warn(
                f"step {step} is saved by a run that resumed an older step; what was there "
                f"as step {', '.join(map(str, later))} is renamed to step_N.quarantined "
                f"in {self._steps.root}",
                CheckpointWarning,
                stacklevel=4,
            )

    def _finish(self, save: StepSave) -> None:
        """Commit a step whose arrays are being written; run on the worker thread."""
        save.finish()
        # It was read back from the disk before the commit.
        self._status.set_intact(save.step)
        self._committed.append(save.step)
        # On all processes, though 0 alone deletes: no process may
        # start the next save while steps are still being renamed.
        apply = functools.partial(self._retention.apply, save.step, num_bytes=save.num_bytes)
        broadcast_object("deleting old checkpoints", apply)


@functools.cache
def _warn_of_old_python() -> None:
    warnings.warn(
        f"Python {sys.version.split()[0]} starts no threads while it ends (python/cpython#113964), "
        "so a save would be lost there: training waits for each one; use Python 3.12.3 or newer",
        CheckpointWarning,
        stacklevel=4,
    )


def _check_are_shared(arrays: Mapping[str, jax.Array]) -> None:
    # A fully addressable array exists in one process only, and
    # each has its own of that name: one would be written, the others lost.
    alone = [name for name, array in arrays.items() if array.is_fully_addressable]
    if process_count() > 1 and alone:
        raise CheckpointError(
            f"{', '.join(alone[:4])} {'is' if len(alone) == 1 else 'are'} held by process "
            f"{process_index()} alone, so {process_count()} processes cannot save one state",
            where=alone[0],
            hint="make it by jax.jit with a sharding over all devices, or put it in `extra`",
        )


@functools.cache
def _close_at_exit() -> "weakref.WeakSet[CheckpointWriter]":
    """Return the set of writers that are closed when the interpreter ends.

    `atexit` would come too late: by then thread pools take no more work. What `concurrent.futures`
    uses for itself runs first; without it, only `close` finishes a save.
    """
    writers: weakref.WeakSet[CheckpointWriter] = weakref.WeakSet()
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(functools.partial(_close_all, writers))
    return writers


def _close_all(writers: "weakref.WeakSet[CheckpointWriter]") -> None:
    # A copy: writers are collected meanwhile, and a WeakSet may not change while it is iterated.
    for writer in list(writers):
        writer.close()


class _Retention:
    """Retention: marks, quarantine and deletion. Process 0 calls it, while it has the lock."""

    def __init__(self, steps: StepStorage, status: StepStatus, *, keep: int | None) -> None:
        self._steps = steps
        self._status = status
        self._keep = keep
        self._to_mark: set[int] = set()

    def mark_good(self, step: int) -> None:
        """Mark a step that this process found whole."""
        if step in self._status.intact:
            self._to_mark.add(step)
            self._try("no step could be marked as good", self._mark)
        else:
            self._warn(f"step {step} is not marked as good: this run did not find it intact")

    def apply(self, step: int, *, num_bytes: int) -> None:
        """Do what is due after a step of so many bytes was saved; the next one needs them again.

        A mark that failed before was for a step of that number in a history that ended.
        """
        # A mark for this step that could not be written belongs to the step that was quarantined.
        self._to_mark.discard(step)
        # Marks before deletion: the newest good step is exempt, and must be known as such by then.
        self._try("no step could be marked as good", self._mark)
        self._try("no step could be quarantined", self.quarantine_damaged)
        self._try("no step could be deleted", self._delete_expired)
        self._try("the free space is not known", self._warn_of_little_space, num_bytes)

    def _mark(self) -> None:
        for step in self._to_mark & set(self._steps.committed()):
            if self._try(f"step {step} could not be marked as good", self._steps.mark_good, step):
                self._to_mark.discard(step)

    def quarantine_damaged(self) -> None:
        """Quarantine the steps that this process found damaged, so that none counts for `keep`."""
        for step in sorted(self._status.damaged & set(self._steps.committed())):
            if self._try(f"step {step} could not be quarantined", self._steps.quarantine, step):
                self._status.damaged.discard(step)
                self._warn(f"step {step} is damaged, and is renamed to step_N.quarantined")

    def _delete_expired(self) -> None:
        good = self._steps.known_good()
        for step in expired_steps(self._steps.committed(), keep=self._keep, good=good):
            self._try(f"step {step} could not be deleted", self._steps.delete, step)

    def _warn_of_little_space(self, num_bytes: int) -> None:
        free = self._steps.free_bytes()
        if free is not None and free < num_bytes:
            self._warn(f"the next step will not fit: {describe_free_space(free, num_bytes)}")

    def _try(self, what: str, act: Callable[..., None], *numbers: int) -> bool:
        try:
            act(*numbers)
        # OSError alone: a bug must not be hidden as a disk's
        # mood. StoreError of object stores is one, too.
        except OSError as error:
            self._warn(f"{what}: {error}; this is tried again after the next save")
            return False
        return True

    def _warn(self, text: str) -> None:
        warnings.warn(f"{text} ({self._steps.root})", CheckpointWarning, stacklevel=4)


def expired_steps(steps: Sequence[int], *, keep: int | None, good: Iterable[int]) -> list[int]:
    """Return the steps to delete, oldest first.

    Args:
        steps: The committed steps, oldest first.
        keep: How many of the newest stay; None: all.
        good: The steps that are known good; the newest of them always stays.
    """
    if keep is None:
        return []
    # `max` of nothing is None, which equals no step.
    kept = {*steps[-keep:], max(good, default=None)}
    return [step for step in steps if step not in kept]
