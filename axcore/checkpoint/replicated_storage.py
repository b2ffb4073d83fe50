"""`Mirror`: steps on a fast disk, each copied to a durable place, and fetched from there.

A machine's own disk takes a step in less time than a shared file system or an object store does,
and is lost with the machine. A step counts once it is whole in either place; one that is damaged on
the fast disk is replaced by its copy. The copy is made in the background, by the thread that
commits, and becomes a step there at once, as on the fast disk.
"""

from pathlib import Path
from typing import Protocol

from axcore.checkpoint.steps import StepDirectories, sync_tree
from axcore.checkpoint.storage import StepPlace, StorageLock
from axcore.errors import CheckpointError

_COPY = "?copy="


def open_mirror(place: str) -> "Mirror":
    """Returns the storage of `FAST?copy=DURABLE`, two directories.

    Raises:
        CheckpointError: One of the two is missing, or they are one.
    """
    fast, _, durable = place.partition(_COPY)
    if not fast or not durable or Path(fast).absolute() == Path(durable).absolute():
        raise CheckpointError(
            f"mirror://{place} does not name two directories",
            where="checkpoint.directory",
            hint="--set checkpoint.directory='mirror:///fast/run?copy=/durable/run'",
        )
    return Mirror(StepDirectories(Path(fast).absolute()), StepDirectories(Path(durable).absolute()))


class StepCopies(StepPlace, Protocol):
    """Where copies of steps are kept: a directory, or an object store."""

    def upload(self, step: int, source: Path) -> None:
        """Makes a draft that holds what a directory does."""

    def publish(self, step: int) -> None:
        """Turns a finished draft into a step, at once and durably; others stay."""

    def download(self, step: int, target: Path) -> None:
        """Copies a step into a directory."""


class Mirror:
    """Steps in two places that are kept alike."""

    def __init__(self, fast: StepDirectories, durable: StepCopies) -> None:
        self._fast = fast
        self._durable = durable
        self.root = fast.root

    def lock(self) -> StorageLock:
        """Takes both places; steps that a killed process had not copied yet are copied now."""
        locks = _StorageLocks(self._durable.lock())
        try:
            locks.add(self._fast.lock())
            for step in sorted({*self._fast.committed()} - {*self._durable.committed()}):
                self._durable.upload(step, self._fast.path(step))
                self._durable.publish(step)
            for step in {*self._fast.known_good()} - {*self._durable.known_good()}:
                self._durable.mark_good(step)
        except BaseException:
            locks.release()
            raise
        return locks

    def committed(self) -> tuple[int, ...]:
        """Returns the steps that are whole in either place, oldest first."""
        return tuple(sorted({*self._fast.committed(), *self._durable.committed()}))

    def begin(self, step: int) -> None:
        """Makes an empty draft on the fast disk."""
        self._fast.begin(step)

    def draft(self, step: int) -> Path:
        """Returns the directory that a step is written into, on the fast disk."""
        return self._fast.draft(step)

    def commit(self, step: int) -> None:
        """Commits a draft on the fast disk."""
        self._fast.commit(step)

    def replicate(self, step: int) -> None:
        """Copies a step to the durable place, and commits it there."""
        self._durable.upload(step, self._fast.path(step))
        self._durable.commit(step)

    def free_bytes(self) -> int:
        """Returns the room that is left where there is less."""
        fast, durable = self._fast.free_bytes(), self._durable.free_bytes()
        return fast if durable is None else min(fast, durable)

    def abandon(self, step: int) -> None:
        """Removes what was written of a step in either place."""
        self._fast.abandon(step)
        self._durable.abandon(step)

    def at_or_after(self, step: int) -> tuple[int, ...]:
        """Returns the steps that `commit(step)` sets aside."""
        return tuple(found for found in self.committed() if found >= step)

    def set_aside(self, step: int) -> None:
        """Sets a step aside in both places."""
        for place in self._places_of(step):
            place.set_aside(step)

    def mark_good(self, step: int) -> None:
        """Marks a step in both places."""
        for place in self._places_of(step):
            place.mark_good(step)

    def known_good(self) -> tuple[int, ...]:
        """Returns the steps that are marked in either place, oldest first."""
        return tuple(sorted({*self._fast.known_good(), *self._durable.known_good()}))

    def prepare(self, step: int) -> None:
        """Fetches a step that the fast disk does not have."""
        if step not in self._fast.committed():
            self._fast.root.mkdir(parents=True, exist_ok=True)
            self._fetch(step)
            self._fast.publish(step)

    def replace_damaged(self, step: int) -> bool:
        """Fetches the copy of a step; the damaged one is set aside."""
        if step not in self._durable.committed():
            return False
        self._fetch(step)
        self._fast.set_aside(step)
        self._fast.publish(step)
        return True

    def path(self, step: int) -> Path:
        """Returns the directory of a step on the fast disk."""
        return self._fast.path(step)

    def delete(self, step: int) -> None:
        """Deletes a step in both places."""
        for place in self._places_of(step):
            place.delete(step)

    def _places_of(self, step: int) -> list[StepCopies]:
        places: tuple[StepCopies, ...] = (self._durable, self._fast)
        return [place for place in places if step in place.committed()]

    def _fetch(self, step: int) -> None:
        """Makes a draft of a step's copy on the fast disk."""
        self._fast.begin(step)
        self._durable.download(step, self._fast.draft(step))
        sync_tree(self._fast.draft(step))


class _StorageLocks:
    """Several locks as one."""

    def __init__(self, *locks: StorageLock) -> None:
        self._locks = list(locks)

    def add(self, lock: StorageLock) -> None:
        """Takes one more."""
        self._locks.append(lock)

    def release(self) -> None:
        """Gives all of them up."""
        for lock in self._locks:
            lock.release()
