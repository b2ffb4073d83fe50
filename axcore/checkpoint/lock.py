"""`FileLock`: one process at a time, distinguished from a killed one, on this host and on others.

The kernel's `flock` decides between processes of one boot of one host: a killed process leaves the
file behind and no lock on it. Some shared file systems do not show it to other hosts. So the holder
writes down who it is, and touches the file every few seconds; on another host it is taken for dead
when the file was not touched for a minute. One that was merely stopped for so long finds another
holder in the file when it wakes, and writes no step.
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from pathlib import Path

import attrs

from axcore.config.json_files import parse_json
from axcore.errors import CheckpointError
from axcore.whole_files import open_regular

# Twelve beats fit into `STALE_S`, so a holder needs to miss many in a row (a
# stalled NFS server, a swapped-out process) before somebody takes its lock.
BEAT_S = 5.0
STALE_S = 60.0
# Between `flock` and writing its name a holder is nameless for a moment. This is how
# long that moment may take on a slow file system before the lock counts as somebody's.
_NAMED_WITHIN_S = 10.0
_POLL_S = 0.05


@attrs.frozen
class Holder:
    """Who holds a lock, as the lock file says it."""

    pid: int
    host: str
    boot: str
    started: str
    token: str

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"

    @property
    def is_of_this_boot(self) -> bool:
        """Whether the kernel that runs this process would know of its lock."""
        return self.boot == _boot_id()

    @property
    def is_dead(self) -> bool:
        """Whether it is known to have ended: its host was booted again, or its process is none."""
        # A pid alone proves nothing: it may have been given to another program
        # since. The start time says whether it is still the same process.
        if self.is_of_this_boot:
            return _start_time(self.pid) != self.started
        # Same host name but another boot id: the machine was started again, so no process
        # of the old boot is left. Another host's processes cannot be asked about from here.
        return self.host == socket.gethostname()


class FileLock:
    """A lock on a file, held by this process until `release` or until the process dies."""

    def __init__(self, path: Path, *, doing: str) -> None:
        """Take the lock; wait up to `STALE_S` for a holder on another host to show life.

        Args:
            path: The lock file; made where it is absent, never deleted.
            doing: What the lock is for, such as "saving checkpoints".

        Raises:
            CheckpointError: A live process holds the lock.
            OSError: The file cannot be made, or its file system has no locks.
        """
        self._path = path
        self._released = threading.Event()
        # Not O_TRUNC: that would erase the name of a
        # holder on another host before anybody has looked.
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._own = self._take(doing)
        except BaseException:
            self._close()
            raise
        # A daemon thread: a lock that is still held must not keep a finished
        # program from ending; the kernel gives `flock` back by itself.
        beat = threading.Thread(target=_beat, args=(path, self._own, self._released), daemon=True)
        beat.start()

    def _take(self, doing: str) -> Holder:
        assert self._descriptor is not None, "the file is open"
        end = time.monotonic() + _NAMED_WITHIN_S
        while not _is_locked(self._descriptor):
            holder = _read(self._path)
            if (holder is not None and not holder.is_dead) or time.monotonic() > end:
                raise held_error(str(self._path.parent), doing, holder)
            time.sleep(_POLL_S)  # it has not said who it is, or only looks whether anybody holds it
        # The kernel gave the lock, but a holder on another host may not see it: some shared file
        # systems keep `flock` to one host. Such a holder touches the file.
        before = _read(self._path)
        if before is not None and not (before.is_of_this_boot or before.is_dead):
            _wait_until_stale(self._path, doing, before)
        own = this_process()
        # Written in place: a rename would make another file, with another lock.
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{json.dumps(attrs.asdict(own))}\n".encode(), 0)
        return own

    def check_is_held(self) -> None:
        """Check that the lock is still this process's.

        Raises:
            OSError: The directory was moved, deleted or unmounted since, or another host took it.
        """
        assert self._descriptor is not None, "the lock is held"
        # By inode, not by path: after `rm -r` and a new `mkdir` the
        # path leads to another file, on which our `flock` says nothing.
        if not os.path.exists(self._path) or not os.path.samestat(
            os.stat(self._path), os.fstat(self._descriptor)
        ):
            raise OSError(errno.ESTALE, "the directory is no longer the one that was locked")
        holder = _read(self._path)
        if holder != self._own:
            raise OSError(errno.ESTALE, f"the lock was taken by {holder or 'somebody'} meanwhile")

    def release(self) -> None:
        """Give the lock up; doing so twice is harmless."""
        if self._descriptor is not None:
            # Emptied only where it is still ours: another host may have taken it meanwhile.
            if _read(self._path) == self._own:
                os.ftruncate(self._descriptor, 0)
            self._close()

    def _close(self) -> None:
        # First the thread, then the descriptor: a beat after the next
        # holder has taken over would make this process look alive.
        self._released.set()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        # `__init__` may have failed in `os.open`, before there is a descriptor.
        if getattr(self, "_descriptor", None) is not None:
            self._close()


def _is_locked(descriptor: int) -> bool:
    """Lock a file if nobody else does; return whether it could."""
    # LOCK_NB: a thread that blocks in `flock` cannot be interrupted with
    # an error that names the holder, and on NFS it may wait for ever.
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _beat(path: Path, own: Holder, released: threading.Event) -> None:
    """Touch the lock file while it is this process's."""
    while not released.wait(BEAT_S):
        try:
            # Read first: to touch another holder's file would
            # make the holder look alive to a third process.
            if _read(path) == own:
                os.utime(path)
        except OSError:
            continue  # what is wrong with the disk is said by the next save


def _wait_until_stale(path: Path, doing: str, holder: Holder) -> None:
    """Return when a holder on another host showed no life for so long that it must be dead."""
    # Changes are compared, not times: clocks of two hosts may differ by more than `STALE_S`.
    seen = _touched(path)
    end = time.monotonic() + STALE_S
    while time.monotonic() < end:
        if _touched(path) != seen:
            raise held_error(str(path.parent), doing, holder)
        time.sleep(_POLL_S)


def _touched(path: Path) -> tuple[int, str]:
    """Return when a file was changed, and what it says; opened again, so that NFS asks again."""
    with open_regular(path) as file:
        return os.fstat(file.fileno()).st_mtime_ns, file.read(4096).decode("utf-8", "replace")


def _read(path: Path) -> Holder | None:
    try:
        return Holder(**parse_json(_touched(path)[1]))
    except (OSError, ValueError, TypeError):
        return None


def this_process() -> Holder:
    """Return this process as the holder of one more lock."""
    pid = os.getpid()
    return Holder(pid, socket.gethostname(), _boot_id(), _start_time(pid), uuid.uuid4().hex)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    # No /proc, so not Linux: the host's name is used for its
    # boot. A restart is then only noticed by the pid being free.
    except OSError:
        return socket.gethostname()


def _start_time(pid: int) -> str:
    """Return when a process started, in ticks since boot; empty where there is none or no /proc.

    A number of a process is given out again; number and time are not.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    # The command's name is in parentheses and may itself hold spaces and parentheses, so
    # fields count from the last one. Index 19 behind it is field 22 of proc(5), `starttime`.
    return text.rpartition(")")[2].split()[19]


def held_error(where: str, doing: str, holder: Holder | None) -> CheckpointError:
    """Return the error of a process that wants what another one holds."""
    own = holder is not None and holder.is_of_this_boot and holder.pid == os.getpid()
    return CheckpointError(
        f"{'this' if own else 'another live'} process ({holder or 'unknown'}) is already {doing}",
        where=where,
        hint="close the first one" if own else "stop that process, or use another directory",
    )
