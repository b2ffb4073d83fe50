"""`ObjectSteps`: steps in an object store, which cannot rename; an index makes a step one.

step_00000100-5f0c.../...     the objects of a step, uploaded once and never changed
step_00000100-5f0c....json    its index, written last: the step is there if and only if this is
step_00000100-5f0c....good    marks the step as known good
step_00000100-5f0c....aside   makes it a step no more; it is kept for a human to look at
lock/00000003                 who writes here

An object appears whole or not at all, and lists show what was written: the stores promise both.
"""

import contextlib
import json
import re
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from axcore.checkpoint.integrity import FileRecord, list_files, record_files
from axcore.checkpoint.manifest import DamagedCheckpointError
from axcore.checkpoint.mirror import Mirror
from axcore.checkpoint.object_lock import ObjectLock
from axcore.checkpoint.object_store import ObjectStore, StoreError
from axcore.checkpoint.steps import StepDirectories
from axcore.config.json_files import parse_json
from axcore.errors import CheckpointError

_NAME = re.compile(r"(step_(\d{8,})-[0-9a-f]{32})(\.json|\.good|\.aside)?")
_INDEX, _GOOD, _ASIDE = ".json", ".good", ".aside"
_STAGING = "?staging="


def _open(scheme: str, place: str) -> Mirror:
    """Returns the storage of `BUCKET/RUN?staging=DIRECTORY`.

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
    store = ObjectStore(f"{scheme}://{path.strip('/')}")
    return Mirror(StepDirectories(Path(staging).absolute()), ObjectSteps(store))


open_s3, open_gs, open_az = (partial(_open, scheme) for scheme in ("s3", "gs", "az"))


class ObjectSteps:
    """The steps of an object store; a `StepCopies`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock: ObjectLock | None = None
        self._uploaded: dict[int, tuple[str, Mapping[str, FileRecord]]] = {}

    def lock(self) -> ObjectLock:
        """Takes the right to write, and clears what killed processes left."""
        lock = ObjectLock(self._store, doing="saving checkpoints here")
        try:
            self._clear_leftovers()
        except BaseException:
            lock.release()
            raise
        self._lock = lock
        return lock

    def committed(self) -> tuple[int, ...]:
        """Returns the committed steps, oldest first."""
        return tuple(sorted(self._prefixes()))

    def known_good(self) -> tuple[int, ...]:
        """Returns the committed steps that have the mark, oldest first."""
        return tuple(sorted(self._prefixes(marked=_GOOD)))

    def upload(self, step: int, source: Path) -> None:
        """Uploads the files of a directory, and reads them back; `publish` makes them a step."""
        self.abandon(step)
        prefix = f"step_{step:08d}-{uuid.uuid4().hex}"
        records = record_files(source, list_files(source))
        self._uploaded[step] = prefix, records
        for name, record in records.items():
            self._store.upload(source / name, f"{prefix}/{name}")
            self._store.check(f"{prefix}/{name}", record)

    def download(self, step: int, target: Path) -> None:
        """Downloads the files of a step; one that is lost stays away, and the manifest misses it.

        Raises:
            DamagedCheckpointError: The index of the step cannot be read.
        """
        prefix = self._prefixes()[step]
        for name in self._files_of(prefix):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                self._store.download(f"{prefix}/{name}", target / name)

    def commit(self, step: int) -> None:
        """Makes what was uploaded the newest step; steps at or after it are set aside."""
        self._check_lock()
        for later in self.committed():
            if later >= step:
                self.set_aside(later)
        self.publish(step)

    def publish(self, step: int) -> None:
        """Makes what was uploaded a step; others stay."""
        self._check_lock()
        prefix, records = self._uploaded[step]
        files = {name: [one.num_bytes, *one.crc32] for name, one in records.items()}
        self._store.write(prefix + _INDEX, json.dumps({"files": files}).encode())
        del self._uploaded[step]

    def abandon(self, step: int) -> None:
        """Removes what was uploaded of a step; what cannot be removed is left for the next lock."""
        if step in self._uploaded:
            prefix, _ = self._uploaded.pop(step)
            with contextlib.suppress(StoreError):
                self._remove(prefix)

    def set_aside(self, step: int) -> None:
        """Marks a step as one no more."""
        self._store.write(self._prefixes()[step] + _ASIDE, b"")

    def mark_good(self, step: int) -> None:
        """Marks a step as known good."""
        self._store.write(self._prefixes()[step] + _GOOD, b"")

    def delete(self, step: int) -> None:
        """Deletes a step, its index first: half of it is never a step."""
        self._remove(self._prefixes()[step])

    def free_bytes(self) -> None:
        """Returns None: an object store has no end."""

    def _prefixes(self, marked: str = "") -> dict[int, str]:
        """Returns the prefix of each step, or of each that has a mark."""
        names = self._store.names()
        found = (match for name in names if (match := _NAME.fullmatch(name)) and match[3] == _INDEX)
        return {
            int(match[2]): match[1]
            for match in found
            if match[1] + _ASIDE not in names and (not marked or match[1] + marked in names)
        }

    def _files_of(self, prefix: str) -> list[str]:
        try:
            return list(parse_json(self._store.read(prefix + _INDEX))["files"])
        except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
            where = f"{self._store.url}/{prefix}{_INDEX}"
            raise DamagedCheckpointError(f"an index is damaged: {error!r}", where=where) from error

    def _remove(self, prefix: str) -> None:
        for kind in (_INDEX, _GOOD, _ASIDE, ""):
            self._store.delete(prefix + kind)

    def _check_lock(self) -> None:
        if self._lock is not None:
            self._lock.check_is_held()

    def _clear_leftovers(self) -> None:
        names = self._store.names()
        found = {match[1] for name in names if (match := _NAME.fullmatch(name))}
        for prefix in found:
            if prefix + _INDEX not in names:
                self._remove(prefix)
