"""`StepSave`: the save of one step, and its retry while the storage fails.

A step is written into a staging directory, `step_N.incomplete`; its files are measured and made
durable, the manifest is written, all of it is read back from the disk, and the directory is renamed
to `step_N`. A process killed at any moment leaves the committed steps as they were.

Of several processes each writes databases of the chunks that it owns, measures them, and reads them
back; process 0 alone makes and names the directory of the step. Where they share no disk, each has
a directory of its own, and shares its files in the store (`store_parts.py`). What goes wrong in one
is raised in all, so all try again alike; an upload continues with what all have staged already.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import jax

from axcore.checkpoint import store
from axcore.checkpoint.chunks import copy_to_host, num_kinds, shared_grids, stored_arrays
from axcore.checkpoint.leaves import leaf_spec
from axcore.checkpoint.manifest import (
    DamagedCheckpointError,
    FileRecord,
    Manifest,
    find_damage,
    find_damage_together,
    read_manifest,
    record_files,
    records_from_json,
    records_to_json,
    write_manifest,
)
from axcore.checkpoint.steps import drop_cached_tree, sync_tree
from axcore.checkpoint.storage import (
    CheckpointWarning,
    RunStorage,
    StorageError,
    as_storage_errors,
    describe_free_space,
    free_bytes,
)
from axcore.distributed import (
    all_gather_object,
    broadcast_object,
    gather_object,
    is_process_zero,
    process_count,
    process_index,
)
from axcore.errors import CheckpointError

# A disk that is full is freed by people or by a clean-up job, in minutes. Without this
# limit the waits would double without end: the twelfth is more than half an hour.
LONGEST_WAIT_S = 60.0


@attrs.frozen
class RetryPolicy:
    """How often the save of a step is tried, with exponential backoff.

    Args:
        tries: How often in all.
        wait_s: Seconds before the second try; each wait after it is twice as long, up to
            `LONGEST_WAIT_S`.
    """

    tries: int
    wait_s: float

    def waits(self) -> list[float]:
        """Return how many seconds to wait after each try but the last."""
        return [min(self.wait_s * 2**i, LONGEST_WAIT_S) for i in range(self.tries - 1)]


class StepSave:
    """The save of one state: started while the state is there, finished on another thread."""

    def __init__(
        self,
        steps: RunStorage,
        step: int,
        arrays: Mapping[str, jax.Array],
        extra: Mapping[str, Any],
        retry_policy: RetryPolicy,
    ) -> None:
        """Copy what this process writes to the host, and return once `arrays` may be donated."""
        self.step = step
        self.num_bytes = sum(array.nbytes for array in arrays.values())
        self._steps = steps
        self._extra = extra
        self._retry_policy = retry_policy
        self._leaves = {name: leaf_spec(array) for name, array in arrays.items()}
        stored = stored_arrays(arrays)
        count = process_count()
        self._grids = shared_grids(stored, count)
        self._databases = tuple(
            store.database_of(process, kind)
            for kind in range(num_kinds(self._grids, count))
            for process in range(count)
        )
        # Kept until the commit: a donated state is gone when a try fails.
        # Of the try in progress: what this process has staged and measured, and for whom.
        self._staged: dict[str, FileRecord] | None = None
        self._written_as = ""
        self._own = {
            name: copy_to_host(stored, self._grids, number)
            for number, name in enumerate(self._databases)
            if number % count == process_index()
        }

    def finish(self) -> None:
        """Commit the step.

        Raises:
            CheckpointError: The storage still failed at the last try.
        """
        try:
            self._retry(self._write_and_commit)
        finally:
            self._steps.leave(self.step)
        # The step is committed by now: where copying it fails, only the copy is made again.
        replicate = partial(self._on_storage, self._steps.replicate)
        self._retry(partial(broadcast_object, "copying a checkpoint", replicate))

    def _retry(self, act: Callable[[], None]) -> None:
        """Act until the storage does as asked."""
        for failed, wait_s in enumerate(self._retry_policy.waits(), start=1):
            try:
                return act()
            except StorageError as error:
                # Before the wait: a full disk gets its space back at once. What
                # is staged here alone stays, for the next try to continue its upload.
                if not self._is_staged():
                    self._abandon()
                self._warn(f"{self._what(error)}; try {failed + 1} follows in {wait_s:g} s")
            time.sleep(wait_s)
        # The last try is outside of the loop: its failure is an error, not a warning.
        try:
            return act()
        except StorageError as error:
            self._abandon()
            raise self._final_error(error) from error

    def _begin(self) -> str:
        with as_storage_errors(OSError):
            # Better than ENOSPC half-way: other jobs on the disk would fail along with this one.
            free = self._steps.free_bytes()
            if free is not None and free < self.num_bytes:
                raise StorageError("there is too little free space")
            self._steps.begin(self.step)
            return self._steps.written_as(self.step)

    def _write_and_commit(self) -> None:
        """Write the step, and commit what can be read back."""
        # Each of these calls is a barrier, too: the manifest is written when every process has
        # written and measured its files, and the rename comes last. See `decide_together`: an
        # error of one process arrives in all, so all leave for the next try together.
        if not self._continues():
            self._written_as = broadcast_object("beginning a checkpoint", self._begin)
        # To process 0 alone, which writes the manifest.
        written = gather_object("writing a checkpoint", self._write_own)
        broadcast_object("writing a manifest", lambda: self._write_manifest(written or []))
        self._read_back(self._staged or {})
        commit = partial(self._on_storage, self._steps.commit)
        # Process 0 alone renames, and the others return
        # only after it: `latest` is then the same in all.
        broadcast_object("committing a checkpoint", commit)

    def _continues(self) -> bool:
        """Whether all processes still have what they staged in the try before."""
        if not self._written_as:
            return False
        if all(all_gather_object("continuing a checkpoint", self._is_staged)):
            return True
        self._abandon()
        return False

    def _is_staged(self) -> bool:
        # Where processes share the directory, process 0 empties it, and all write again.
        if self._steps.is_shared or self._staged is None:
            return False
        try:
            return not find_damage(self._staging_directory, self._staged)
        except OSError:
            return False

    def _write_own(self) -> dict[str, Any]:
        """Write this process's databases, share them, and return the records of their files."""
        with as_storage_errors(Exception):  # TensorStore raises ValueError
            if self._staged is None:
                self._steps.enter(self.step, self._written_as)
                root, records = self._staging_directory, {}
                for name, leaves in self._own.items():
                    store.write(root / name, leaves)
                    # Here, and not by process 0 alone: another host's kernel has nothing to flush.
                    sync_tree(root / name)
                    records.update(record_files(root, name))
                self._staged = records
            self._steps.share(self.step, self._staged)
            return records_to_json(self._staged)

    def _write_manifest(self, written: list[dict[str, Any]]) -> None:
        manifest = Manifest(
            step=self.step,
            leaves=self._leaves,
            files={
                name: one for files in written for name, one in records_from_json(files).items()
            },
            extra=self._extra,
            databases=self._databases,
            grids=self._grids,
        )
        with as_storage_errors(OSError, DamagedCheckpointError):
            # Files before the manifest: after a power cut a manifest never names a file that is
            # not durable.
            sync_tree(self._staging_directory)
            write_manifest(self._staging_directory, manifest)
            # Or reading back would compare the page cache with itself.
            drop_cached_tree(self._staging_directory)
            # What was just written is read at once: a manifest
            # that cannot be parsed again must not become a step.
            read_manifest(self._staging_directory)

    def _read_back(self, own: dict[str, FileRecord]) -> None:
        root = self._staging_directory
        # As in `_write_manifest`; that was on the host of process 0.
        for name in self._own:
            drop_cached_tree(root / name)
        problems = find_damage_together("reading a checkpoint back", root, own)
        if problems:
            raise StorageError(f"files differ when they are read back: {'; '.join(problems)}")

    def _on_storage(self, act: Callable[[int], None]) -> None:
        with as_storage_errors(OSError):
            act(self.step)

    def _abandon(self) -> None:
        self._staged = None
        self._steps.leave(self.step)
        # Process 0 alone: the others may still be on their way out of the failed try.
        if is_process_zero():
            self._steps.abandon(self.step)

    @property
    def _staging_directory(self) -> Path:
        return self._steps.staging_directory(self.step)

    def _final_error(self, error: StorageError) -> CheckpointError:
        return CheckpointError(
            f"{self._what(error)}; it was tried {self._retry_policy.tries} times",
            where=str(self._steps.root),
            hint="free space or repair the disk, then run again; earlier steps are unharmed",
        )

    def _what(self, error: StorageError) -> str:
        space = describe_free_space(free_bytes(self._steps), self.num_bytes)
        return f"saving step {self.step} failed: {error.what} ({space})"

    def _warn(self, text: str) -> None:
        if is_process_zero():
            warnings.warn(f"{text} ({self._steps.root})", CheckpointWarning, stacklevel=3)
