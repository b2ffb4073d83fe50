"""`ReplicatedStorage`: steps on a fast disk, with a replica of each in durable storage.

A machine's own disk takes a step in less time than a shared file system or an object store does,
and is lost with the machine. A step counts once it is complete in either; one that is damaged on
the fast disk is replaced by its replica. The replica is made in the background, by the thread that
commits, and becomes a step there at once, as on the fast disk.
"""

from pathlib import Path
from typing import Protocol

from axcore.checkpoint.steps import StepDirectories, sync_tree
from axcore.checkpoint.storage import SharedStorage, StepLocation, StorageLock
from axcore.errors import CheckpointError

_COPY = "?copy="


def open_replicated(place: str) -> "ReplicatedStorage":
    """Return the storage of `FAST?copy=DURABLE`, two directories.

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
    return ReplicatedStorage(
        StepDirectories(Path(fast).absolute()), StepDirectories(Path(durable).absolute())
    )


class ReplicaLocation(StepLocation, Protocol):
    """Where copies of steps are kept: a directory, or an object store."""

    def upload(self, step: int, source: Path) -> None:
        """Make a staging directory that contains what a directory does."""

    def publish(self, step: int) -> None:
        """Turn a complete staging directory into a step, at once and durably; others stay."""

    def download(self, step: int, target: Path) -> None:
        """Copy a step into a directory."""


class ReplicatedStorage(SharedStorage):
    """Steps on a fast disk and in durable storage, kept alike."""

    def __init__(self, fast: StepDirectories, durable: ReplicaLocation) -> None:
        self._fast = fast
        self._durable = durable
        self.root = fast.root

    def lock(self) -> StorageLock:
        """Take both places; steps that a killed process had not copied yet are copied now."""
        # Two hosts share the durable one only, so it is what refuses a second writer: before
        # anything here is changed.
        locks = _StorageLocks(self._durable.lock())
        try:
            locks.add(self._fast.lock())
            # Oldest first: a process killed while it copies leaves a durable place
            # whose newest step is complete, not one with holes before its newest.
            for step in sorted({*self._fast.committed()} - {*self._durable.committed()}):
                self._durable.upload(step, self._fast.path(step))
                # `publish`, not `commit`: these steps are older than some
                # that are there already, and must not quarantine them.
                self._durable.publish(step)
            for step in {*self._fast.known_good()} - {*self._durable.known_good()}:
                self._durable.mark_good(step)
        except BaseException:
            locks.release()
            raise
        return locks

    def committed(self) -> tuple[int, ...]:
        """Return the steps that are whole in either place, oldest first."""
        return tuple(sorted({*self._fast.committed(), *self._durable.committed()}))

    def begin(self, step: int) -> None:
        """Make an empty staging directory on the fast disk."""
        self._fast.begin(step)

    def staging_directory(self, step: int) -> Path:
        """Return the directory that a step is written into, on the fast disk."""
        return self._fast.staging_directory(step)

    def commit(self, step: int) -> None:
        """Commit a staging directory on the fast disk."""
        self._fast.commit(step)

    def replicate(self, step: int) -> None:
        """Copy a step to the durable place, and commit it there."""
        self._durable.upload(step, self._fast.path(step))
        self._durable.commit(step)

    def free_bytes(self) -> int:
        """Return the free space where there is less."""
        fast, durable = self._fast.free_bytes(), self._durable.free_bytes()
        return fast if durable is None else min(fast, durable)

    def abandon(self, step: int) -> None:
        """Remove what was written of a step in either place."""
        self._fast.abandon(step)
        self._durable.abandon(step)

    def at_or_after(self, step: int) -> tuple[int, ...]:
        """Return the steps that `commit(step)` quarantines."""
        return tuple(found for found in self.committed() if found >= step)

    def quarantine(self, step: int) -> None:
        """Set a step aside in both places."""
        for place in self._locations_of(step):
            place.quarantine(step)

    def mark_good(self, step: int) -> None:
        """Mark a step in both places."""
        for place in self._locations_of(step):
            place.mark_good(step)

    def known_good(self) -> tuple[int, ...]:
        """Return the steps that are marked in either place, oldest first."""
        return tuple(sorted({*self._fast.known_good(), *self._durable.known_good()}))

    def prepare(self, step: int) -> None:
        """Fetch a step that the fast disk does not have."""
        if step not in self._fast.committed():
            # A new machine has an empty disk: the first thing
            # that ever touches its root may be a restore.
            self._fast.root.mkdir(parents=True, exist_ok=True)
            self._fetch(step)
            # `publish` makes it a step after `sync_tree` only, so
            # that a crash here leaves a leftover and no half step.
            self._fast.publish(step)

    def replace_damaged(self, step: int) -> bool:
        """Fetch the copy of a step; the damaged one is quarantined."""
        if step not in self._durable.committed():
            return False
        # Fetched before the damaged one is moved: where the network fails, nothing has changed.
        self._fetch(step)
        self._fast.quarantine(step)
        self._fast.publish(step)
        return True

    def path(self, step: int) -> Path:
        """Return the directory of a step on the fast disk."""
        return self._fast.path(step)

    def delete(self, step: int) -> None:
        """Delete a step in both places."""
        for place in self._locations_of(step):
            place.delete(step)

    def _locations_of(self, step: int) -> list[ReplicaLocation]:
        places: tuple[ReplicaLocation, ...] = (self._durable, self._fast)
        return [place for place in places if step in place.committed()]

    def _fetch(self, step: int) -> None:
        """Make a staging directory of a step's copy on the fast disk."""
        self._fast.begin(step)
        self._durable.download(step, self._fast.staging_directory(step))
        sync_tree(self._fast.staging_directory(step))


class _StorageLocks:
    """Several locks as one."""

    def __init__(self, *locks: StorageLock) -> None:
        self._locks = list(locks)

    def add(self, lock: StorageLock) -> None:
        """Take one more."""
        self._locks.append(lock)

    def release(self) -> None:
        """Give all of them up."""
        for lock in self._locks:
            lock.release()
