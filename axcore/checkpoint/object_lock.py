"""`ObjectLock`: one process at a time, by objects that are created or not, never replaced.

The lock is the object in `lock/` with the highest number; it says who holds it, and is empty where
it was released. Who takes it creates the next number, which the store lets one process do. A holder
writes its object again every few seconds; one that did not for a minute is taken for dead. If it
was merely stopped, it finds the higher number when it wakes, and writes no step.
"""

import errno
import json
import socket
import threading
import time
import warnings

import attrs

from axcore.checkpoint.faults import CheckpointWarning
from axcore.checkpoint.lock import STALE_S, Holder, held_error, this_process
from axcore.checkpoint.object_store import ObjectStore
from axcore.checkpoint.storage import StorageLock
from axcore.config.json_files import parse_json

BEAT_S = 10.0
_POLL_S = 1.0
_FOLDER = "lock"


class ObjectLock(StorageLock):
    """A lock in an object store, held by this process until `release` or until it dies."""

    def __init__(self, store: ObjectStore, *, doing: str) -> None:
        """Takes the lock; waits up to `STALE_S` for a holder on another host to show life.

        Raises:
            CheckpointError: A live process holds the lock.
            OSError: The store cannot be written.
        """
        self._store = store
        self._own = this_process()
        self._number = self._take(doing)
        self._released = threading.Event()
        self._beat = threading.Thread(target=self._keep_beating, daemon=True)
        self._beat.start()

    def check_is_held(self) -> None:
        """Checks that the lock is still this process's.

        Raises:
            OSError: Another process took it, or the store cannot be read.
        """
        number, text = self._newest()
        if number != self._number:
            holder = _holder(text) or "somebody"
            raise OSError(errno.ESTALE, f"the lock was taken by {holder} meanwhile")

    def release(self) -> None:
        """Gives the lock up; doing so twice is harmless."""
        if self._released.is_set():
            return
        self._released.set()
        self._beat.join()
        try:
            self._store.write(_name(self._number), b"")
        except OSError as error:
            warnings.warn(
                f"a lock could not be given up, so the next run on another host waits "
                f"{STALE_S:g} s for it: {error}",
                CheckpointWarning,
                stacklevel=2,
            )

    def _take(self, doing: str) -> int:
        while True:
            number, text = self._newest()
            holder = _holder(text)
            if holder == self._own:  # the answer to `create` was lost, and the driver asked again
                return number
            if holder is not None:
                self._wait_until_dead(holder, (number, text), doing)
            if self._store.create(_name(number + 1), self._text(0)):
                for old in range(number, 0, -1):
                    self._store.delete(_name(old))
                return number + 1

    def _wait_until_dead(self, holder: Holder, seen: tuple[int, bytes], doing: str) -> None:
        if holder.is_of_this_boot and holder.host == socket.gethostname():
            if not holder.is_gone:
                raise held_error(self._store.url, doing, holder)
            return
        end = time.monotonic() + STALE_S
        while time.monotonic() < end:
            if self._newest() != seen:
                raise held_error(self._store.url, doing, holder)
            time.sleep(_POLL_S)

    def _newest(self) -> tuple[int, bytes]:
        """Returns the highest number and what it says; 0 where there is none."""
        while True:
            numbers = [int(name) for name in self._store.names(_FOLDER) if name.isdigit()]
            if not numbers:
                return 0, b""
            try:
                return max(numbers), self._store.read(_name(max(numbers)))
            except FileNotFoundError:
                continue  # the next holder has just cleared it

    def _keep_beating(self) -> None:
        count = 0
        while not self._released.wait(BEAT_S):
            count += 1
            try:
                self._store.write(_name(self._number), self._text(count))
            except OSError:
                continue  # what is wrong with the store is said by the next save

    def _text(self, count: int) -> bytes:
        return json.dumps({**attrs.asdict(self._own), "beat": count}).encode()


def _name(number: int) -> str:
    return f"{_FOLDER}/{number:08d}"


def _holder(text: bytes) -> Holder | None:
    try:
        content = parse_json(text)
        del content["beat"]
        return Holder(**content)
    except (ValueError, KeyError, TypeError):
        return None
