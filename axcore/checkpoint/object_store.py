"""`ObjectSteps`: steps in an object store, which cannot rename; an index makes a step one.

step_00000100-5f0c.../...           the objects of a step, uploaded once and never changed
step_00000100-5f0c....json          its index, written last: without it there is no step
step_00000100-5f0c....good          marks the step as known good
step_00000100-5f0c....quarantined   makes it a step no more; it is kept for a human to look at
lock/00000003                       who writes here

Of several processes each uploads its own objects of a step (`store_parts.py`); one writes the rest.
An object appears complete or not at all, and lists show what was written: the stores promise both.
`ObjectStore` has the calls that this needs, through fsspec's drivers. They ask again by themselves
after what passes: answers such as 503, timeouts, cut connections. What they give up on is a
`StoreError`, whichever driver it came from.
"""

import contextlib
import errno
import hashlib
import json
import re
import socket
import threading
import time
import uuid
import warnings
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from axcore.checkpoint.lock import STALE_S, Holder, held_error, this_process
from axcore.checkpoint.manifest import (
    DamagedCheckpointError,
    FileRecord,
    record_files,
    records_to_json,
)
from axcore.checkpoint.pieces import (
    NUM_REQUESTS,
    Piece,
    cut_off,
    pieces_of,
    read_at,
    read_pieces,
)
from axcore.checkpoint.replicated_storage import ReplicatedStorage
from axcore.checkpoint.steps import StepDirectories
from axcore.checkpoint.storage import CheckpointWarning, RunStorage, StorageError, StorageLock
from axcore.checkpoint.store_parts import StoreParts
from axcore.config.json_files import parse_json
from axcore.distributed import process_count
from axcore.errors import CheckpointError

# Slower than a file's beat: each is a request that is paid for. Six still fit into `STALE_S`.
BEAT_S = 10.0
_POLL_S = 1.0
_FOLDER = "lock"


_NAME = re.compile(r"(step_(\d{8,})-[0-9a-f]{32})(\.json|\.good|\.quarantined)?")
_INDEX, _GOOD, _QUARANTINED = ".json", ".good", ".quarantined"
# Not a `&`-separated query: a staging directory may contain any character but this marker.
_STAGING = "?staging="


class StoreError(StorageError, OSError):
    """An object store did not do as asked, and its driver has given up."""


class ObjectStore:
    """The objects whose names begin with a URL; names here are relative to it."""

    def __init__(self, url: str) -> None:
        """Make no connection yet.

        Raises:
            CheckpointError: The driver is not installed.
        """
        self.url = url
        self._files, self._root = _open_files(url)

    def names(self, folder: str = "") -> set[str]:
        """Return the names in a folder, folders included."""
        with self._asking(f"list {folder or 'it'}"):
            self._files.invalidate_cache()  # others write here; some drivers list from a cache
            try:
                paths = self._files.ls(self._path(folder), detail=False)
            # Stores have no folders; most drivers report an empty prefix as missing.
            except FileNotFoundError:
                return set()
        return {path.rstrip("/").rpartition("/")[2] for path in paths}

    def read(self, name: str, begin: int | None = None, end: int | None = None) -> bytes:
        """Return the content of an object, or a range of it.

        Raises:
            FileNotFoundError: There is none.
        """
        with self._asking(f"read {name}"):
            return bytes(self._files.cat_file(self._path(name), start=begin, end=end))

    def write(self, name: str, data: bytes) -> None:
        """Write an object, whole or not at all; replace one of that name."""
        with self._asking(f"write {name}"):
            self._files.pipe_file(self._path(name), data)

    def create(self, name: str, data: bytes) -> bool:
        """Write an object; False where there is one of that name."""
        # "create" is a conditional write (If-None-Match or a generation of 0) that the store
        # itself decides. A look followed by a write would let two processes both succeed.
        with self._asking(f"create {name}"):
            try:
                self._files.pipe_file(self._path(name), data, mode="create")
            except FileExistsError:
                return False
        return True

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes of all objects whose names begin with a folder."""
        with self._asking(f"list {folder}"):
            self._files.invalidate_cache()
            found = self._files.find(self._path(folder), detail=True)
        cut = len(self._root) + 1
        return {path[cut:]: one["size"] for path, one in found.items()}

    def check(self, name: str, num_bytes: int, crc32: str) -> None:
        """Read an object back and compare it with what was written.

        Raises:
            StoreError: It differs.
        """
        if not self.has(name, num_bytes, crc32):
            raise StoreError(f"{self.url}/{name} differs when it is read back")

    def has(self, name: str, num_bytes: int, crc32: str) -> bool:
        """Whether there is an object of some content."""
        try:
            data = self.read(name)
        except FileNotFoundError:
            return False
        return len(data) == num_bytes and f"{zlib.crc32(data):08x}" == crc32

    def delete(self, name: str) -> None:
        """Delete an object or a folder; do nothing where there is none."""
        with self._asking(f"delete {name}"):
            # Some drivers answer a recursive delete from a cached
            # list, and would leave behind what was written since.
            self._files.invalidate_cache()
            try:
                self._files.rm(self._path(name), recursive=True)
            except FileNotFoundError:
                return

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Make what a driver raises one kind of error: each has its own, and shares no base."""
        try:
            yield
        except (FileNotFoundError, CheckpointError):
            # FileNotFoundError stays as it is: callers distinguish
            # "there is none" from "the store does not answer".
            raise
        # Drivers raise the errors of each store's own library, aiohttp's,
        # and plain RuntimeError; only Exception covers all of them.
        except Exception as error:
            raise StoreError(f"{self.url}: cannot {what}: {error or repr(error)}") from error


def _open_files(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs

        # Instances are shared in a process by default, and so would be
        # their caches and their event loop with whatever else uses fsspec
        # here. Lists must show what other processes have just written.
        files, root = url_to_fs(url, skip_instance_cache=True, use_listings_cache=False)
    except ImportError as error:
        raise CheckpointError(
            f"checkpoints in {url} need a driver that is not installed: {error}",
            where="checkpoint.directory",
            hint='pip install "axcore[object-stores]"',
        ) from error
    return files, root.rstrip("/")


# -- The lock --------------------------------------------------------------------------------------
#
# One process at a time, by objects that are created or not, never replaced. The lock is the object
# in `lock/` with the highest number; it says who holds it, and is empty where it was released. Who
# takes it creates the next number, which the store lets one process do. A holder writes its object
# again every few seconds; one that did not for a minute is taken for dead. If it was merely
# stopped, it finds the higher number when it wakes, and writes no step.


class ObjectLock(StorageLock):
    """A lock in an object store, held by this process until `release` or until it dies."""

    def __init__(self, store: ObjectStore, *, doing: str) -> None:
        """Take the lock; wait up to `STALE_S` for a holder on another host to show life.

        Raises:
            CheckpointError: A live process holds the lock.
            OSError: The store cannot be written.
        """
        self._store = store
        self._own = this_process()
        self._number = self._take(doing)
        self._released = threading.Event()
        self._beat = threading.Thread(target=self._keep_beating, daemon=True)
        # Last: the beat reads `_number` and `_released`, which must be there.
        self._beat.start()

    def check_is_held(self) -> None:
        """Check that the lock is still this process's.

        Raises:
            OSError: Another process took it, or the store cannot be read.
        """
        # A higher number means that another process took this one for dead. The object of this
        # number may be deleted by then, so it is not looked at.
        number, text = self._newest()
        if number != self._number:
            holder = _holder(text) or "somebody"
            raise OSError(errno.ESTALE, f"the lock was taken by {holder} meanwhile")

    def release(self) -> None:
        """Give the lock up; doing so twice is harmless."""
        if self._released.is_set():
            return
        self._released.set()
        # Joined before the object is emptied: a beat that is on its way would write the
        # holder's name into it again, and the next run would wait a minute for nobody.
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
            # Of several that come at once the store lets one create it; the others start again and
            # find a live holder. Old numbers are deleted after that, never before: a number that
            # was free again could be created twice.
            # Beat 0 is written by `create` itself, so the
            # object is never there without its holder's name.
            if self._store.create(_name(number + 1), self._text(0)):
                for old in range(number, 0, -1):
                    self._store.delete(_name(old))
                return number + 1

    def _wait_until_dead(self, holder: Holder, seen: tuple[int, bytes], doing: str) -> None:
        if holder.is_of_this_boot and holder.host == socket.gethostname():
            if not holder.is_dead:
                raise held_error(self._store.url, doing, holder)
            return
        end = time.monotonic() + STALE_S
        # As in `FileLock`: the content is compared with what
        # it was, never a time of the store's clock with ours.
        while time.monotonic() < end:
            if self._newest() != seen:
                raise held_error(self._store.url, doing, holder)
            time.sleep(_POLL_S)

    def _newest(self) -> tuple[int, bytes]:
        """Return the highest number and what it says; 0 where there is none."""
        while True:
            numbers = [int(name) for name in self._store.names(_FOLDER) if name.isdigit()]
            if not numbers:
                return 0, b""
            try:
                return max(numbers), self._store.read(_name(max(numbers)))
            except FileNotFoundError:
                # Its number is higher, so the next list has it.
                continue  # the next holder has just cleared it

    def _keep_beating(self) -> None:
        count = 0
        while not self._released.wait(BEAT_S):
            # A counter, not a time: the content must differ at
            # every beat, and clocks of two hosts need not agree.
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


def _open(scheme: str, place: str) -> RunStorage:
    """Return the storage of `BUCKET/RUN?staging=DIRECTORY`.

    Raises:
        CheckpointError: One of the two is missing, or the driver is.
    """
    path, _, staging = place.partition(_STAGING)
    if not path.strip("/") or not staging:
        raise CheckpointError(
            f"{scheme}://{place} does not name a bucket and a directory to stage steps in",
            where="checkpoint.directory",
            hint=f"--set checkpoint.directory='{scheme}://bucket/run?staging=/local/run'",
        )
    steps = ObjectSteps(ObjectStore(f"{scheme}://{path.strip('/')}"))
    directory = Path(staging).absolute()
    # One process has all of a step on its disk, which is a second place for it. Of several each has
    # its part there, which is a step nowhere but in the store.
    if process_count() > 1:
        return StoreParts(directory, steps)
    return ReplicatedStorage(StepDirectories(directory), steps)


open_s3, open_gs, open_az = (partial(_open, scheme) for scheme in ("s3", "gs", "az"))


class ObjectSteps:
    """The steps of an object store; a `ReplicaLocation`."""

    def __init__(self, store: ObjectStore) -> None:
        self.url = store.url
        self._store = store
        self._lock: ObjectLock | None = None
        self._uploaded: dict[int, tuple[str, dict[str, FileRecord]]] = {}
        # How the names of a directory's objects begin that is not a step yet.
        self._tried: dict[int, str] = {}
        # What this process read back of its last upload: names and checksums, since a
        # manifest may be written again under its name.
        self._checked: tuple[str, set[tuple[str, str]]] = "", set()

    def lock(self) -> ObjectLock:
        """Take the right to write."""
        self._lock = ObjectLock(self._store, doing="saving checkpoints here")
        return self._lock

    def committed(self) -> tuple[int, ...]:
        """Return the committed steps, oldest first."""
        return tuple(sorted(self._prefixes()))

    def known_good(self) -> tuple[int, ...]:
        """Return the committed steps that have the mark, oldest first."""
        return tuple(sorted(self._prefixes(marked=_GOOD)))

    def upload(self, step: int, source: Path) -> None:
        """Upload the files of a directory, and read them back; `publish` makes them a step.

        Of a directory whose upload broke, in this process or one before, what is there is skipped.
        """
        records = record_files(source)
        prefix = self._prefix_of(step, records)
        self._uploaded[step] = prefix, records
        self.upload_files(prefix, source, records)

    def _prefix_of(self, step: int, records: Mapping[str, FileRecord]) -> str:
        """Return how the names of a directory's objects begin: the same at each try."""
        content = json.dumps(records_to_json(records), sort_keys=True).encode()
        # By the content: a write that was given up on and arrives later changes nothing.
        prefix = f"step_{step:08d}-{hashlib.sha256(content).hexdigest()[:32]}"
        # A step that was quarantined never counts again, and one that is saved again is a new one;
        # but the index may be that of the last try, whose answer was lost.
        names, is_tried = self._store.names(), self._tried.get(step) == prefix
        is_other = prefix + _QUARANTINED in names or (prefix + _INDEX in names and not is_tried)
        self._tried[step] = self._new_prefix(step) if is_other else prefix
        return self._tried[step]

    def _new_prefix(self, step: int) -> str:
        return f"step_{step:08d}-{uuid.uuid4().hex}"

    def begin_upload(self, step: int) -> str:
        """Return how the names of a step's objects begin that are uploaded from now on."""
        # A new one, since what follows need not have the bytes of a try before,
        # of which a write that was given up on may still arrive.
        prefix = self._new_prefix(step)
        self._uploaded[step] = prefix, {}
        return prefix

    def upload_files(self, prefix: str, source: Path, records: Mapping[str, FileRecord]) -> None:
        """Upload those files that are not there yet; any process may, whoever began the upload.

        Each piece is read back right after it was written: a failure is known at once.
        """
        there = self._store.sizes(prefix)
        if self._checked[0] != prefix:
            self._checked = prefix, set()
        checked = self._checked[1]

        def upload(piece: Piece, crc32: str) -> None:
            name = f"{prefix}/{piece.object_name}"
            is_there = there.get(name) == piece.num_bytes
            if is_there and (
                (name, crc32) in checked or self._store.has(name, piece.num_bytes, crc32)
            ):
                return
            data = read_at(source / piece.name, piece.begin, piece.num_bytes)
            self._store.write(name, data)
            self._store.check(name, piece.num_bytes, crc32)
            checked.add((name, crc32))

        with ThreadPoolExecutor(NUM_REQUESTS) as pool:
            uploads = [
                pool.submit(upload, piece, crc32)
                for name, record in records.items()
                for piece, crc32 in zip(pieces_of(name, record), record.crc32, strict=True)
            ]
            # In turn, and none that was not begun after the first that failed: a store that
            # does not answer would cost the driver's retries once for each piece.
            try:
                for one in uploads:
                    one.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def add_uploaded(self, step: int, records: Mapping[str, FileRecord]) -> None:
        """Note what was uploaded of a step, for its index to name."""
        self._uploaded[step][1].update(records)

    def download(self, step: int, target: Path) -> None:
        """Download the files of a step; one that is lost stays away, and the manifest misses it.

        Raises:
            DamagedCheckpointError: The index of the step cannot be read.
        """
        prefix = self.prefix(step)
        self.download_files(prefix, self.files_of(prefix), target)

    def prefix(self, step: int) -> str:
        """Return how the names of a committed step's objects begin."""
        return self._prefixes()[step]

    def download_files(self, prefix: str, files: Mapping[str, FileRecord], target: Path) -> None:
        """Download some files of a step; one that is lost stays away."""
        pieces = [piece for name, record in files.items() for piece in pieces_of(name, record)]
        # A lost object must not hide the others: the manifest will name
        # exactly what is missing, and the reader goes to the next step.
        cut_off(target, read_pieces(target, files, pieces, partial(self.read_piece, prefix)))

    def read_piece(self, prefix: str, piece: Piece) -> bytes:
        """Return what the store has of a piece of a file of a step.

        Raises:
            FileNotFoundError: It is lost.
        """
        try:
            return self._store.read(f"{prefix}/{piece.object_name}")
        except FileNotFoundError:
            if piece.number is None:
                raise
            # Before there were pieces, each file was one object, however large.
            return self._store.read(f"{prefix}/{piece.name}", piece.begin, piece.end)

    def commit(self, step: int) -> None:
        """Make what was uploaded the newest step; steps at or after it are quarantined."""
        # The lock again here: the upload may have taken minutes, long enough to be taken for dead.
        self._check_lock()
        # There is no rename, so for a moment neither the old history nor the new step is there; a
        # process killed then leaves older steps, and the fast disk has this one.
        prefix, _ = self._uploaded[step]
        for later, other in self._prefixes().items():
            # Not itself, where the answer to the last write of a try before was lost.
            if later >= step and other != prefix:
                self.quarantine(later)
        self.publish(step)

    def publish(self, step: int) -> None:
        """Make what was uploaded a step; others stay."""
        self._check_lock()
        prefix, records = self._uploaded[step]
        # One small object, written last, is the commit: it is there whole or not at all.
        files = {name: [one.num_bytes, *one.crc32] for name, one in records.items()}
        self._store.write(prefix + _INDEX, json.dumps({"files": files}).encode())
        # Only after the write: if it fails, the next try continues from here.
        del self._uploaded[step]
        self._tried.pop(step, None)
        # Nobody else uploads while this process has the lock. What cannot be removed now,
        # the next commit removes.
        with contextlib.suppress(StoreError):
            self.clear_leftovers()

    def abandon(self, step: int) -> None:
        """Forget an upload; the next commit removes it, unless that continues it."""
        self._uploaded.pop(step, None)

    def quarantine(self, step: int) -> None:
        """Mark a step as one no more."""
        self._store.write(self._prefixes()[step] + _QUARANTINED, b"")

    def mark_good(self, step: int) -> None:
        """Mark a step as known good."""
        self._store.write(self._prefixes()[step] + _GOOD, b"")

    def delete(self, step: int) -> None:
        """Delete a step, its index first: half of it is never a step."""
        self._remove(self._prefixes()[step])

    def free_bytes(self) -> None:
        """Return None: an object store has no end."""

    def _prefixes(self, marked: str = "") -> dict[int, str]:
        """Return the prefix of each step, or of each that has a mark."""
        names = self._store.names()
        found = (match for name in names if (match := _NAME.fullmatch(name)) and match[3] == _INDEX)
        return {
            int(match[2]): match[1]
            for match in found
            if match[1] + _QUARANTINED not in names and (not marked or match[1] + marked in names)
        }

    def files_of(self, prefix: str) -> dict[str, FileRecord]:
        """Return the files that the index of a step names.

        Raises:
            DamagedCheckpointError: It cannot be read.
        """
        try:
            body = parse_json(self._store.read(prefix + _INDEX))["files"]
            return {name: FileRecord(size, tuple(crc)) for name, (size, *crc) in body.items()}
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
            where = f"{self._store.url}/{prefix}{_INDEX}"
            raise DamagedCheckpointError(f"an index is damaged: {error!r}", where=where) from error

    def _remove(self, prefix: str) -> None:
        # In this order, by the rule of `publish` backwards: without the
        # index it is not a step, whatever a killed process leaves of the rest.
        for kind in (_INDEX, _GOOD, _QUARANTINED, ""):
            self._store.delete(prefix + kind)

    def _check_lock(self) -> None:
        if self._lock is not None:
            self._lock.check_is_held()

    def clear_leftovers(self) -> None:
        """Remove what was uploaded of steps that were not committed; only with the lock."""
        names = self._store.names()
        found = {match[1] for name in names if (match := _NAME.fullmatch(name))}
        for prefix in found:
            if prefix + _INDEX not in names:
                self._remove(prefix)
