"""`StoreParts`: the steps of several processes in an object store, without a disk that all share.

Each process writes its part of a step into a folder of its own, and uploads it from there. Process
0 writes the manifest, and then the index, which names what all have uploaded: that is the commit.
To restore, a process downloads the parts that have its chunks into a folder that is empty.

part-<host>-<random>                a folder of a process, while it writes or reads a step

Nothing stays in these folders, so it does not matter which host has which process, whether two
share a disk, or whether a disk is lost. Those of killed processes are removed by the next one.
"""

import contextlib
import fcntl
import os
import shutil
import socket
import uuid
import warnings
import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import attrs

from axcore.checkpoint.manifest import (
    MANIFEST_NAME,
    FileRecord,
    read_manifest,
    record_file,
)
from axcore.checkpoint.pieces import Piece
from axcore.checkpoint.single_replica import fetch_once
from axcore.checkpoint.steps import StepDirectories
from axcore.checkpoint.storage import CheckpointWarning, StepLocation, StorageLock


class PartLocation(StepLocation, Protocol):
    """Where several processes put their parts of steps: an object store."""

    url: str

    def begin_upload(self, step: int) -> str:
        """Return how the names of a step's objects begin that are uploaded from now on."""

    def upload_files(self, prefix: str, source: Path, records: Mapping[str, FileRecord]) -> None:
        """Upload files, and read them back."""

    def add_uploaded(self, step: int, records: Mapping[str, FileRecord]) -> None:
        """Note what was uploaded of a step, for its index to name."""

    def prefix(self, step: int) -> str:
        """Return how the names of a committed step's objects begin."""

    def files_of(self, prefix: str) -> dict[str, FileRecord]:
        """Return the files that the index of a step names."""

    def download_files(self, prefix: str, files: Mapping[str, FileRecord], target: Path) -> None:
        """Download some files of a step; one that is lost stays away."""

    def clear_leftovers(self) -> None:
        """Remove what was uploaded of steps that were not committed."""

    def read_piece(self, prefix: str, piece: Piece) -> bytes:
        """Return what the store has of a piece of a file of a step."""


@attrs.define
class _Part:
    """This process's part of a step: a folder, and how its objects' names begin in the store."""

    prefix: str
    folder: "StagingFolder"


class StoreParts:
    """Steps in an object store, of which each process stages its own part; a `RunStorage`."""

    is_shared = False

    def __init__(self, staging: Path, durable: PartLocation) -> None:
        self.root = staging
        self._durable = durable
        self._begun: dict[int, str] = {}
        # Apart, since a step may be read while one of that number is written again.
        self._written: dict[int, _Part] = {}
        self._read: dict[int, _Part] = {}

    def lock(self) -> StorageLock:
        """Take the right to write; a history that one process kept on this disk ends."""
        lock = self._durable.lock()
        try:
            self._durable.clear_leftovers()
            self._clear_whole_steps()
        except BaseException:
            lock.release()
            raise
        return lock

    def _clear_whole_steps(self) -> None:
        """Remove the steps on this disk, which the next run of one process would take for its own.

        `ReplicatedStorage` keeps them there; what this run saves is not among them.
        """
        local = StepDirectories(self.root)
        if not local.committed():
            return
        lock = local.lock()
        lost = {*local.committed()} - {*self._durable.committed()}
        for step in local.committed():
            (local.quarantine if step in lost else local.delete)(step)
        lock.release()
        if lost:
            warnings.warn(
                f"step {', '.join(map(str, sorted(lost)))} was never uploaded, and is renamed to "
                f"step_N.quarantined in {self.root}, since this run of several processes saves "
                "without it; a run of one process would upload it",
                CheckpointWarning,
                stacklevel=2,
            )

    def committed(self) -> tuple[int, ...]:
        """Return the committed steps, oldest first."""
        return self._durable.committed()

    # -- Writing ---------------------------------------------------------------------------------

    def begin(self, step: int) -> None:
        """Begin the upload of all processes."""
        self._begun[step] = self._durable.begin_upload(step)

    def written_as(self, step: int) -> str:
        """Return how the names of the objects begin that all upload."""
        return self._begun[step]

    def enter(self, step: int, written_as: str) -> None:
        """Make this process's staging directory of a step."""
        self.leave(step)
        self._written[step] = _Part(written_as, StagingFolder(self.root))

    def staging_directory(self, step: int) -> Path:
        """Return the directory that this process writes its part of a step into."""
        return self._written[step].folder.path

    def share(self, step: int, files: Mapping[str, FileRecord]) -> None:
        """Upload those files of this process that are not there yet, and read them back."""
        part = self._written[step]
        self._durable.upload_files(part.prefix, part.folder.path, files)

    def commit(self, step: int) -> None:
        """Upload the manifest, and write the index, which names the files of all processes."""
        staging = self.staging_directory(step)
        # It was read back from the disk, and has what each process measured and uploaded.
        files = read_manifest(staging).files
        own = {MANIFEST_NAME: record_file(staging, MANIFEST_NAME)}
        self.share(step, own)
        self._durable.add_uploaded(step, {**own, **files})
        self._durable.commit(step)

    def leave(self, step: int) -> None:
        """Remove this process's staging directory, if it has one."""
        if step in self._written:
            self._written.pop(step).folder.remove()

    def abandon(self, step: int) -> None:
        """Let what all processes uploaded of a step be removed."""
        self._durable.abandon(step)

    def replicate(self, step: int) -> None:
        """Do nothing: the store is the one place of a step."""

    def free_bytes(self) -> None:
        """Return None: the store has no end, and each process's disk is its own."""

    # -- Reading ---------------------------------------------------------------------------------

    def prepare(self, step: int) -> None:
        """Download the manifest of a step."""
        prefix = self._durable.prefix(step)
        # An index that cannot be read makes the step a damaged one, though all files may be there.
        if not (self._part_to_read(step, prefix) / MANIFEST_NAME).exists():
            files = self._durable.files_of(prefix)
            # Whoever reads the manifest misses it where the index does not name it.
            named = {name: one for name, one in files.items() if name == MANIFEST_NAME}
            self._download(step, prefix, named)

    def stored_as(self, step: int) -> str:
        """Return how the names of the objects of a prepared step begin."""
        return self._read[step].prefix

    def fetch(
        self, step: int, stored_as: str, files: Mapping[str, FileRecord]
    ) -> dict[str, FileRecord]:
        """Download the files that this process does not have yet, and return those."""
        folder = self._part_to_read(step, stored_as)
        new = {name: one for name, one in files.items() if not (folder / name).exists()}
        self._download(step, stored_as, new)
        return new

    def fetch_once(
        self, step: int, stored_as: str, files: Mapping[str, FileRecord]
    ) -> dict[str, FileRecord]:
        """As `fetch`, in all processes together: what several need, one reads for all of them."""
        folder = self._part_to_read(step, stored_as)
        new = {name: one for name, one in files.items() if not (folder / name).exists()}
        try:
            fetch_once(folder, new, partial(self._durable.read_piece, stored_as))
        except BaseException:
            self.release(step)
            raise
        return new

    def _download(self, step: int, prefix: str, files: Mapping[str, FileRecord]) -> None:
        try:
            self._durable.download_files(prefix, files, self._part_to_read(step, prefix))
        except BaseException:
            # Half of a file would be taken for one that was fetched and verified before.
            self.release(step)
            raise

    def path(self, step: int) -> Path:
        """Return the directory that this process fetches files of a step into."""
        known = self._read.get(step)
        return known.folder.path if known else self.root / f"step_{step:08d}"

    def place_of(self, step: int) -> str:
        """Return where the names of a step's objects begin."""
        return f"{self._durable.url}/step_{step:08d}"

    def release(self, step: int) -> None:
        """Remove what this process fetched of a step."""
        if step in self._read:
            self._read.pop(step).folder.remove()

    def replace_damaged(self, step: int) -> bool:
        """Return False: there is one copy of a step."""
        return False

    def _part_to_read(self, step: int, prefix: str) -> Path:
        known = self._read.get(step)
        # A step of this number may have been saved again, by a run that went back.
        if known is None or known.prefix != prefix:
            self.release(step)
            self._read[step] = _Part(prefix, StagingFolder(self.root))
        return self._read[step].folder.path

    # -- Keeping ---------------------------------------------------------------------------------

    def at_or_after(self, step: int) -> tuple[int, ...]:
        """Return the steps that `commit(step)` quarantines."""
        return tuple(found for found in self.committed() if found >= step)

    def quarantine(self, step: int) -> None:
        """Make a step none any more."""
        self._durable.quarantine(step)

    def mark_good(self, step: int) -> None:
        """Mark a step as known good."""
        self._durable.mark_good(step)

    def known_good(self) -> tuple[int, ...]:
        """Return the steps that are marked, oldest first."""
        return self._durable.known_good()

    def delete(self, step: int) -> None:
        """Delete a step."""
        self._durable.delete(step)


class StagingFolder:
    """A folder of this process alone, until `remove` is called or the process ends."""

    def __init__(self, root: Path) -> None:
        """Make an empty one, and remove those of processes of this host that were killed.

        Raises:
            OSError: The disk cannot be written, or has no locks.
        """
        root.mkdir(parents=True, exist_ok=True)
        own = f"part-{socket.gethostname()}-"
        for entry in root.iterdir():
            # Not those of other hosts, which may see this disk, too, and not our locks.
            if entry.name.startswith(own) and (found := _take(entry)) is not None:
                _remove(entry, found)
        while True:
            self.path = root / f"{own}{uuid.uuid4().hex}"
            self.path.mkdir()
            taken = _take(self.path)
            # None where another process has seen it before it was locked, and removes it.
            if taken is not None:
                break
        # By the interpreter's end at the latest, or when nobody has this object any more.
        self.remove = weakref.finalize(self, _remove, self.path, taken)


def _take(path: Path) -> int | None:
    """Return a descriptor that locks a folder, None where it is another's or gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    with contextlib.suppress(BlockingIOError):
        # The kernel gives the lock back when its process dies, however it does.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.exists():
            return descriptor
    os.close(descriptor)
    return None


def _remove(path: Path, descriptor: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(descriptor)
