"""Writes steps: in the background, one at a time, committed whole or not at all.

`save.py` writes a step and reads it back; older steps are deleted after that, by process 0.
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
from axcore.checkpoint.reader import StepFacts
from axcore.checkpoint.save import Patience, StepSave
from axcore.checkpoint.storage import CheckpointWarning, StepStorage, StorageLock, describe_room
from axcore.distributed import broadcast_object, process_count, process_index
from axcore.errors import CheckpointError

THREADS_START_AT_EXIT = not (3, 12) <= sys.version_info < (3, 12, 3)
"""Whether a save can be finished while the interpreter ends; Orbax starts threads for it.

Python 3.12.0 to 3.12.2 forbid that (https://github.com/python/cpython/issues/113964).
"""


class CheckpointWriter:
    """Writes steps into a storage, and keeps the newest `keep` and the newest good one."""

    def __init__(
        self, steps: StepStorage, facts: StepFacts, *, keep: int | None, patience: Patience
    ) -> None:
        self._steps = steps
        self._facts = facts
        self._patience = patience
        self._housekeeping = Housekeeping(steps, facts, keep=keep)
        self._lock: StorageLock | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._pending: list[Future[None]] = []
        self._last_started: int | None = None
        self._committed: collections.deque[int] = collections.deque()

    def start(self, step: int, state: Any, extra: dict[str, Any]) -> None:
        """Starts to save a state, after the one before is committed; see `Checkpointer.save`."""
        self.wait()
        arrays = name_arrays(state)
        check_extra(extra)
        self._check_order(step)
        _check_are_shared(arrays)
        worker = self._lock_for_writing()
        broadcast_object("looking for later checkpoints", lambda: self._warn_of_later_steps(step))
        save = StepSave(self._steps, step, arrays, extra, self._patience)
        self._last_started = step
        self._pending.append(worker.submit(self._finish, save))
        if not THREADS_START_AT_EXIT:
            _warn_of_old_python()
            wait_for(self._pending)

    def mark_good(self, step: int) -> None:
        """Starts to mark a step as good; see `Checkpointer.mark_good`."""
        mark = functools.partial(self._housekeeping.mark_good, step)
        worker = self._lock_for_writing()
        self._pending.append(worker.submit(broadcast_object, "marking a good checkpoint", mark))

    def rewind(self, step: int) -> None:
        """Sets aside the committed steps after `step`; see `Checkpointer.rewind`."""
        self.wait()
        self._lock_for_writing()
        broadcast_object("going back to a checkpoint", lambda: self._set_aside_after(step))
        self._last_started = step

    def wait(self) -> None:
        """Waits until the save in flight is committed, and raises its failure once."""
        pending, self._pending = self._pending, []
        wait_for(pending)
        for one in pending:
            one.result()

    def newly_committed(self) -> tuple[int, ...]:
        """Returns the steps that were committed since this was last asked, oldest first."""
        return tuple(self._committed.popleft() for _ in range(len(self._committed)))

    def close(self) -> None:
        """Waits, then gives up the right to write."""
        try:
            self.wait()
        finally:
            worker, self._worker = self._worker, None
            lock, self._lock = self._lock, None
            if worker is not None:
                worker.shutdown()
            if lock is not None:
                lock.release()

    def _set_aside_after(self, step: int) -> None:
        for later in reversed(self._steps.at_or_after(step + 1)):
            self._steps.set_aside(later)

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
        """Returns the worker thread; makes the directory and locks it the first time."""
        if self._worker is None:
            broadcast_object("locking the checkpoints", self._take_lock)
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
            _close_at_exit().add(self)
        return self._worker

    def _take_lock(self) -> None:
        try:
            self._lock = self._steps.lock()
            self._housekeeping.set_damaged_aside()
        except OSError as error:
            raise CheckpointError(
                f"checkpoints cannot be written: {error}", where=str(self._steps.root)
            ) from error

    def _warn_of_later_steps(self, step: int) -> None:
        try:
            later = self._steps.at_or_after(step)
        except OSError as error:  # the save tries again, and sets them aside
            what = f"what is there after step {step} is not known: {error}"
            warnings.warn(what, CheckpointWarning, stacklevel=4)
            return
        if later:
            warnings.warn(
                f"step {step} is saved by a run that resumed an older step; what was there "
                f"as step {', '.join(map(str, later))} is kept as step_N.aside "
                f"in {self._steps.root}",
                CheckpointWarning,
                stacklevel=4,
            )

    def _finish(self, save: StepSave) -> None:
        """Commits a step whose arrays are being written; runs on the worker thread."""
        save.finish()
        self._facts.found_whole(save.step)
        self._committed.append(save.step)
        tidy = functools.partial(self._housekeeping.tidy, save.step, num_bytes=save.num_bytes)
        broadcast_object("tidying checkpoints up", tidy)


@functools.cache
def _warn_of_old_python() -> None:
    warnings.warn(
        f"Python {sys.version.split()[0]} starts no threads while it ends (python/cpython#113964), "
        "so a save would be lost there: training waits for each one; use Python 3.12.3 or newer",
        CheckpointWarning,
        stacklevel=4,
    )


def _check_are_shared(arrays: Mapping[str, jax.Array]) -> None:
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
    """Returns the set of writers that are closed when the interpreter ends.

    `atexit` would come too late: by then the thread pools that Orbax needs take no more work. What
    `concurrent.futures` uses for itself runs first; without it, only `close` finishes a save.
    """
    writers: weakref.WeakSet[CheckpointWriter] = weakref.WeakSet()
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(functools.partial(_close_all, writers))
    return writers


def _close_all(writers: "weakref.WeakSet[CheckpointWriter]") -> None:
    for writer in list(writers):
        writer.close()


class Housekeeping:
    """Keeps a storage in order; process 0 of a run calls it, while it has the lock."""

    def __init__(self, steps: StepStorage, facts: StepFacts, *, keep: int | None) -> None:
        self._steps = steps
        self._facts = facts
        self._keep = keep
        self._to_mark: set[int] = set()

    def mark_good(self, step: int) -> None:
        """Marks a step that this process found whole."""
        if step in self._facts.whole:
            self._to_mark.add(step)
            self._try("no step could be marked as good", self._mark)
        else:
            self._warn(f"step {step} is not marked as good: this run did not find it whole")

    def tidy(self, step: int, *, num_bytes: int) -> None:
        """Does what is due after a step of so many bytes was saved; the next one needs them again.

        A mark that failed before was for a step of that number in a history that ended.
        """
        self._to_mark.discard(step)
        self._try("no step could be marked as good", self._mark)
        self._try("no step could be set aside", self.set_damaged_aside)
        self._try("no step could be deleted", self._delete_expired)
        self._try("the room left is not known", self._warn_of_little_room, num_bytes)

    def _mark(self) -> None:
        for step in self._to_mark & set(self._steps.committed()):
            if self._try(f"step {step} could not be marked as good", self._steps.mark_good, step):
                self._to_mark.discard(step)

    def set_damaged_aside(self) -> None:
        """Sets aside the steps that this process found damaged, so that none counts as kept."""
        for step in sorted(self._facts.damaged & set(self._steps.committed())):
            if self._try(f"step {step} could not be set aside", self._steps.set_aside, step):
                self._facts.damaged.discard(step)
                self._warn(f"step {step} is damaged, and is kept as step_N.aside")

    def _delete_expired(self) -> None:
        good = self._steps.known_good()
        for step in expired_steps(self._steps.committed(), keep=self._keep, good=good):
            self._try(f"step {step} could not be deleted", self._steps.delete, step)

    def _warn_of_little_room(self, num_bytes: int) -> None:
        free = self._steps.free_bytes()
        if free is not None and free < num_bytes:
            self._warn(f"the next step will not fit: {describe_room(free, num_bytes)}")

    def _try(self, what: str, act: Callable[..., None], *numbers: int) -> bool:
        try:
            act(*numbers)
        except OSError as error:
            self._warn(f"{what}: {error}; this is tried again after the next save")
            return False
        return True

    def _warn(self, text: str) -> None:
        warnings.warn(f"{text} ({self._steps.root})", CheckpointWarning, stacklevel=4)


def expired_steps(steps: Sequence[int], *, keep: int | None, good: Iterable[int]) -> list[int]:
    """Returns the steps to delete, oldest first.

    Args:
        steps: The committed steps, oldest first.
        keep: How many of the newest stay; None: all.
        good: The steps that are known good; the newest of them always stays.
    """
    if keep is None:
        return []
    kept = {*steps[-keep:], max(good, default=None)}
    return [step for step in steps if step not in kept]
