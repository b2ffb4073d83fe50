"""The storage `file`: step directories, named so that they sort, committed by a rename.

step_00000100               committed; damaged only if something outside changed it
step_00000200.incomplete    the staging directory of a step, or left behind by a killed process
step_00000050.deleting      being deleted, or left behind by a killed process
step_00000300.quarantined   damaged, or replaced by a run that resumed an older step

A file `known_good` in a step marks it; it moves and goes with the step.
"""

import os
import re
import shutil
import warnings
from pathlib import Path

from axcore.checkpoint.lock import FileLock
from axcore.checkpoint.storage import CheckpointWarning, SharedStorage
from axcore.whole_files import sync_path, write_whole

# Eight digits sort by name up to 99,999,999; more digits are
# accepted so that a longer run does not lose its steps from view.
_COMMITTED = re.compile(r"step_(\d{8,})")
_GOOD_NAME = "known_good"
_LEFTOVER = re.compile(r"step_\d{8,}\.(incomplete|deleting)(-\d+)?")


def open_directory(place: str) -> "StepDirectories":
    """Return the storage of a directory, absolute or relative to the working directory."""
    return StepDirectories(Path(place).absolute())


class StepDirectories(SharedStorage):
    """The step directories under one root; a `StepStorage`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock: FileLock | None = None

    def lock(self) -> FileLock:
        """Make the root, locks it, and clear what killed processes left."""
        self.root.mkdir(parents=True, exist_ok=True)
        # The lock is next to the steps, not in one: it must
        # stay the same file for the life of the directory.
        lock = FileLock(self.root / "writer.lock", doing="saving checkpoints here")
        # Under the lock only: a staging directory without it may be that of a live writer.
        self._clear_leftovers()
        self._lock = lock
        return lock

    def prepare(self, step: int) -> None:
        """Do nothing: a committed step can be read."""

    def replace_damaged(self, step: int) -> bool:
        """Return False: there is one copy of a step."""
        return False

    def path(self, step: int) -> Path:
        """Return the directory of a committed step."""
        return self.root / f"step_{step:08d}"

    def staging_directory(self, step: int) -> Path:
        """Return the directory that a step is written into."""
        return self.root / f"{self.path(step).name}.incomplete"

    def committed(self) -> tuple[int, ...]:
        """Return the committed steps, oldest first."""
        # `iterdir` of a missing directory raises, and a run that never saved has none.
        names = (entry.name for entry in self.root.iterdir()) if self.root.is_dir() else ()
        matches = (_COMMITTED.fullmatch(name) for name in names)
        return tuple(sorted(int(match[1]) for match in matches if match))

    def begin(self, step: int) -> None:
        """Make the empty directory that a step is written into."""
        # A process that was stopped for a minute may have lost its lock; it must not write over
        # the steps of the next holder.
        self._check_lock()
        # A leftover of our own failed try: `mkdir` refuses a directory that
        # exists, and old files in it would be measured into the new manifest.
        self.abandon(step)
        self.staging_directory(step).mkdir()

    def upload(self, step: int, source: Path) -> None:
        """Copy a directory into a staging directory, durably."""
        self.begin(step)
        # `begin` has just made the directory, so `copytree` must accept one that exists.
        shutil.copytree(source, self.staging_directory(step), dirs_exist_ok=True)
        sync_tree(self.staging_directory(step))

    def download(self, step: int, target: Path) -> None:
        """Copy a committed step into a directory."""
        shutil.copytree(self.path(step), target, dirs_exist_ok=True)

    def replicate(self, step: int) -> None:
        """Do nothing: there is one copy of a step."""

    def free_bytes(self) -> int:
        """Return the free space on the disk of the root."""
        return shutil.disk_usage(self.root).free

    def abandon(self, step: int) -> None:
        """Remove what was written of a step that was not committed."""
        # Errors are ignored: what cannot be removed now (NFS keeps
        # open files under other names) is cleared by the next `lock`.
        shutil.rmtree(self.staging_directory(step), ignore_errors=True)

    def commit(self, step: int) -> None:
        """Turn a complete staging directory into the newest committed step, at once and durably.

        Committed steps at or after `step` belong to a history that ended; they are quarantined.
        """
        self._check_lock()
        # Before the rename: a step of the old history after the new step would be the newest.
        for later in self.at_or_after(step):
            self.quarantine(later)
        self.publish(step)

    def publish(self, step: int) -> None:
        """Commit a complete staging directory, at once and durably; other steps stay."""
        os.rename(self.staging_directory(step), self.path(step))
        sync_path(self.root)  # the rename is in the directory, which has its own place on the disk

    def quarantine(self, step: int) -> None:
        """Rename a committed step, which is none any more and is kept for a human to look at."""
        os.rename(self.path(step), self._free_name(f"{self.path(step).name}.quarantined"))
        # The name says it all, so the file is empty; `write_whole`
        # makes it durable, for it decides what retention may delete.
        sync_path(self.root)

    def mark_good(self, step: int) -> None:
        """Write the mark into a committed step."""
        write_whole(self.path(step) / _GOOD_NAME, b"")

    def known_good(self) -> tuple[int, ...]:
        """Return the committed steps that have the mark, oldest first."""
        return tuple(step for step in self.committed() if (self.path(step) / _GOOD_NAME).exists())

    def at_or_after(self, step: int) -> tuple[int, ...]:
        """Return the committed steps that `commit(step)` quarantines."""
        return tuple(found for found in self.committed() if found >= step)

    def delete(self, step: int) -> None:
        """Delete a committed step; a crash on the way never leaves half of it under its name."""
        doomed = self._free_name(f"{self.path(step).name}.deleting")
        # Renamed first: half of a deleted step must not look like a step.
        os.rename(self.path(step), doomed)
        sync_path(self.root)
        # All, not only `doomed`: what an earlier crash or a failed delete left goes now as well.
        for half_deleted in self.root.glob("step_*.deleting*"):
            shutil.rmtree(half_deleted)

    def _check_lock(self) -> None:
        if self._lock is not None:
            self._lock.check_is_held()

    def _clear_leftovers(self) -> None:
        # A list first: a directory that changes while `iterdir` runs may skip entries.
        for entry in list(self.root.iterdir()):
            if _LEFTOVER.fullmatch(entry.name):
                _clear(entry)

    def _free_name(self, name: str) -> Path:
        path, count = self.root / name, 1
        while path.exists():
            count += 1
            path = self.root / f"{name}-{count}"
        return path


def _clear(leftover: Path) -> None:
    try:
        shutil.rmtree(leftover)
    except OSError as error:
        warnings.warn(
            f"{leftover} was left by a process that ended, and could not be deleted: {error}",
            CheckpointWarning,
            stacklevel=2,
        )


def sync_tree(root: Path) -> None:
    """Make every file and directory under `root` durable, the innermost first."""
    # A directory's own sync makes the names in it durable, so it comes after what it names.
    for folder, _, names in os.walk(root, topdown=False):
        # Files written by other processes are synced here, too:
        # fsync works on the file, not on the descriptor that wrote.
        for name in names:
            sync_path(Path(folder, name))
        sync_path(Path(folder))


def drop_cached_tree(root: Path) -> None:
    """Ask the kernel to forget the files under `root`, so that they are next read from the disk.

    They must be durable. A file system in memory ignores it; a disk may have its own cache.
    """
    for path in root.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
