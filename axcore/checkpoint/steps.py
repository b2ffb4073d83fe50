"""The storage `file`: step directories, named so that they sort, committed by a rename.

step_00000100               committed; damaged only if something outside changed it
step_00000200.incomplete    being written, or left behind by a killed process
step_00000050.deleting      being deleted, or left behind by a killed process
step_00000300.aside         damaged, or replaced by a run that resumed an older step

A file `known_good` in a step marks it; it moves and goes with the step.
"""

import os
import re
import shutil
import warnings
from pathlib import Path

from axcore.checkpoint.lock import FileLock
from axcore.checkpoint.storage import CheckpointWarning
from axcore.whole_files import sync_path, write_whole

_COMMITTED = re.compile(r"step_(\d{8,})")
_GOOD_NAME = "known_good"
_LEFTOVER = re.compile(r"step_\d{8,}\.(incomplete|deleting)(-\d+)?")


def open_directory(place: str) -> "StepDirectories":
    """Returns the storage of a directory, absolute or relative to the working directory."""
    return StepDirectories(Path(place).absolute())


class StepDirectories:
    """The step directories under one root; a `StepStorage`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock: FileLock | None = None

    def lock(self) -> FileLock:
        """Makes the root, locks it, and clears what killed processes left."""
        self.root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.root / "writer.lock", doing="saving checkpoints here")
        self._clear_leftovers()
        self._lock = lock
        return lock

    def prepare(self, step: int) -> None:
        """Does nothing: a committed step can be read."""

    def replace_damaged(self, step: int) -> bool:
        """Returns False: there is one copy of a step."""
        return False

    def path(self, step: int) -> Path:
        """Returns the directory of a committed step."""
        return self.root / f"step_{step:08d}"

    def draft(self, step: int) -> Path:
        """Returns the directory that a step is written into."""
        return self.root / f"{self.path(step).name}.incomplete"

    def committed(self) -> tuple[int, ...]:
        """Returns the committed steps, oldest first."""
        names = (entry.name for entry in self.root.iterdir()) if self.root.is_dir() else ()
        matches = (_COMMITTED.fullmatch(name) for name in names)
        return tuple(sorted(int(match[1]) for match in matches if match))

    def begin(self, step: int) -> None:
        """Makes the empty directory that a step is written into."""
        self._check_lock()
        self.abandon(step)
        self.draft(step).mkdir()

    def upload(self, step: int, source: Path) -> None:
        """Copies a directory into a draft, durably."""
        self.begin(step)
        shutil.copytree(source, self.draft(step), dirs_exist_ok=True)
        sync_tree(self.draft(step))

    def download(self, step: int, target: Path) -> None:
        """Copies a committed step into a directory."""
        shutil.copytree(self.path(step), target, dirs_exist_ok=True)

    def replicate(self, step: int) -> None:
        """Does nothing: there is one copy of a step."""

    def free_bytes(self) -> int:
        """Returns the room that is left on the disk of the root."""
        return shutil.disk_usage(self.root).free

    def abandon(self, step: int) -> None:
        """Removes what was written of a step that was not committed."""
        shutil.rmtree(self.draft(step), ignore_errors=True)

    def commit(self, step: int) -> None:
        """Turns a finished draft into the newest committed step, at once and durably.

        Committed steps at or after `step` belong to a history that ended; they are set aside.
        """
        self._check_lock()
        for later in self.at_or_after(step):
            self.set_aside(later)
        self.publish(step)

    def publish(self, step: int) -> None:
        """Turns a finished draft into a committed step, at once and durably; others stay."""
        os.rename(self.draft(step), self.path(step))
        sync_path(self.root)

    def set_aside(self, step: int) -> None:
        """Renames a committed step, which is none any more and is kept for a human to look at."""
        os.rename(self.path(step), self._free_name(f"{self.path(step).name}.aside"))
        sync_path(self.root)

    def mark_good(self, step: int) -> None:
        """Writes the mark into a committed step."""
        write_whole(self.path(step) / _GOOD_NAME, b"")

    def known_good(self) -> tuple[int, ...]:
        """Returns the committed steps that have the mark, oldest first."""
        return tuple(step for step in self.committed() if (self.path(step) / _GOOD_NAME).exists())

    def at_or_after(self, step: int) -> tuple[int, ...]:
        """Returns the committed steps that `commit(step)` sets aside."""
        return tuple(found for found in self.committed() if found >= step)

    def delete(self, step: int) -> None:
        """Deletes a committed step; a crash on the way never leaves half of it under its name."""
        doomed = self._free_name(f"{self.path(step).name}.deleting")
        os.rename(self.path(step), doomed)
        sync_path(self.root)
        for half_deleted in self.root.glob("step_*.deleting*"):
            shutil.rmtree(half_deleted)

    def _check_lock(self) -> None:
        if self._lock is not None:
            self._lock.check_is_held()

    def _clear_leftovers(self) -> None:
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
    """Makes every file and directory under `root` durable, the innermost first."""
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            sync_path(Path(folder, name))
        sync_path(Path(folder))


def drop_cached_tree(root: Path) -> None:
    """Asks the kernel to forget the files under `root`, so that they are next read from the disk.

    They must be durable. A file system in memory ignores it; a disk may have its own cache.
    """
    for path in root.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
