"""Files that survive a crash: atomic writes, durable directories, and a lock."""

import errno
import fcntl
import os
import socket
from pathlib import Path

from axcore.errors import CheckpointError


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file so that a reader, or a crash, sees the old content or the new, never a part."""
    draft = path.with_name(path.name + ".tmp")
    with open(draft, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Makes a file's content, or a directory's list of names, durable on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


class FileLock:
    """A lock on a file, held by this process until `release` or until the process dies.

    It is the kernel's `flock`: a killed process leaves the file behind and no lock on it.
    """

    def __init__(self, path: Path, *, doing: str) -> None:
        """Takes the lock.

        Args:
            path: The lock file; made where it is absent, never deleted.
            doing: What the lock is for, such as "saving checkpoints".

        Raises:
            CheckpointError: A live process holds the lock.
            OSError: The file cannot be made, or its file system has no locks.
        """
        self._path = path
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 200, 0).decode(errors="replace").strip()
            self.release()
            raise _held_error(path, doing, holder) from None
        except OSError:
            self.release()
            raise
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def check_is_in_place(self) -> None:
        """Checks that the file that is locked is the one at the path.

        Raises:
            OSError: The directory was moved, deleted or unmounted since.
        """
        assert self._descriptor is not None, "the lock is held"
        if not os.path.exists(self._path) or not os.path.samestat(
            os.stat(self._path), os.fstat(self._descriptor)
        ):
            raise OSError(errno.ESTALE, "the directory is no longer the one that was locked")

    def release(self) -> None:
        """Gives the lock up; doing so twice is harmless."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            self.release()


def _held_error(path: Path, doing: str, holder: str) -> CheckpointError:
    own = holder.startswith(f"pid {os.getpid()} on {socket.gethostname()}")
    return CheckpointError(
        f"{'this' if own else 'another live'} process ({holder or 'unknown'}) is already {doing}",
        where=str(path.parent),
        hint="close the first one" if own else "stop that process, or use another directory",
    )
