"""`StepSave`: the save of one step, and its retry while the storage fails.

A step is written into a staging directory, `step_N.incomplete`; its files are measured and made
durable, the manifest is written, all of it is read back from the disk, and the directory is renamed
to `step_N`. A process killed at any moment leaves the committed steps as they were.

Of several processes each writes the shards that it owns and reads a part of the files; process 0
alone makes and names directories. What process 0 sees go wrong is raised in all, so all try again
alike; a part that one process alone fails to write makes the others wait at a barrier.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np

from axcore.checkpoint import store
from axcore.checkpoint.leaves import leaf_spec
from axcore.checkpoint.manifest import (
    DamagedCheckpointError,
    Manifest,
    find_damage_together,
    read_manifest,
    record_together,
    write_manifest,
)
from axcore.checkpoint.reader import ARRAYS_NAME
from axcore.checkpoint.steps import drop_cached_tree, sync_tree
from axcore.checkpoint.storage import (
    CheckpointWarning,
    StepStorage,
    StorageError,
    as_storage_errors,
    describe_free_space,
    free_bytes,
)
from axcore.distributed import all_gather_object, broadcast_object, is_process_zero
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
        steps: StepStorage,
        step: int,
        arrays: Mapping[str, jax.Array],
        extra: Mapping[str, Any],
        retry_policy: RetryPolicy,
    ) -> None:
        """Start the first try, and return once `arrays` may be donated."""
        self.step = step
        self.num_bytes = sum(array.nbytes for array in arrays.values())
        self._steps = steps
        self._extra = extra
        self._retry_policy = retry_policy
        self._leaves = {name: leaf_spec(array) for name, array in arrays.items()}
        self._finish_arrays = self._start_arrays(arrays)
        # After the first try was started: it copies the shards to the host, and `np.asarray` in
        # `Snapshot` then finds these copies with the shards instead of making second ones.
        self._snapshot = Snapshot(arrays) if retry_policy.tries > 1 else None

    def finish(self) -> None:
        """Commit the step.

        Raises:
            CheckpointError: The storage still failed at the last try.
        """
        # The state is in the first try's hands already; only a further try needs the snapshot.
        self._retry(self._verify_and_commit, self._start_next_try)
        # The step is committed by now: where copying it fails, only the copy is made again.
        replicate = partial(self._on_storage, self._steps.replicate)
        self._retry(partial(broadcast_object, "copying a checkpoint", replicate))

    def _retry(self, act: Callable[[], None], prepare: Callable[[], None] = lambda: None) -> None:
        """Act until the storage does as asked; call `prepare` after each failure."""
        for failed, wait_s in enumerate(self._retry_policy.waits(), start=1):
            try:
                return act()
            except StorageError as error:
                self._abandon()
                # Abandoned before the wait: a full disk gets its space back at once.
                self._warn(f"{self._what(error)}; try {failed + 1} follows in {wait_s:g} s")
            time.sleep(wait_s)
            prepare()
        # The last try is outside of the loop: its failure is an error, not a warning.
        try:
            return act()
        except StorageError as error:
            self._abandon()
            raise self._final_error(error) from error

    def _start_next_try(self) -> None:
        assert self._snapshot is not None, "there is more than one try"
        self._finish_arrays = self._start_arrays(self._snapshot.arrays())

    def _start_arrays(self, arrays: Mapping[str, jax.Array]) -> Callable[[], None]:
        """Start to write arrays; what goes wrong is raised by the function that it returns."""
        # The error is kept until `finish`: this runs on the thread that trains, which must not wait
        # for a disk that is full for a second. The retry is on the other thread.
        try:
            # Process 0 decides for all: a process that began where
            # another one could not would wait at Orbax's first barrier.
            broadcast_object("beginning a checkpoint", self._begin)
            with as_storage_errors(Exception):  # TensorStore raises ValueError, Orbax its own
                return store.start_saving(self._staging_directory / ARRAYS_NAME, arrays)
        except StorageError as error:
            return partial(_raise, error)

    def _begin(self) -> None:
        with as_storage_errors(OSError):
            # Better than ENOSPC half-way: other jobs on the disk would fail along with this one.
            free = self._steps.free_bytes()
            if free is not None and free < self.num_bytes:
                raise StorageError("there is too little free space")
            self._steps.begin(self.step)

    def _verify_and_commit(self) -> None:
        """Wait for the arrays, and commit what can be read back."""
        # Each of these calls is a barrier, too: files are measured when every process has written,
        # the manifest is written when all are measured, and the rename comes last.
        # See `all_gather_object`: an error of one process
        # arrives in all, so all leave for the next try together.
        all_gather_object("writing a checkpoint", self._finish_writing)
        files = record_together(self._staging_directory)
        manifest = Manifest(step=self.step, leaves=self._leaves, files=files, extra=self._extra)
        broadcast_object("writing a manifest", partial(self._write_manifest, manifest))
        self._read_back(manifest)
        commit = partial(self._on_storage, self._steps.commit)
        # Process 0 alone renames, and the others return
        # only after it: `latest` is then the same in all.
        broadcast_object("committing a checkpoint", commit)

    def _finish_writing(self) -> None:
        with as_storage_errors(Exception):
            self._finish_arrays()

    def _write_manifest(self, manifest: Manifest) -> None:
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

    def _read_back(self, manifest: Manifest) -> None:
        problems = find_damage_together(
            "reading a checkpoint back", self._staging_directory, manifest.files
        )
        if problems:
            raise StorageError(f"files differ when they are read back: {'; '.join(problems)}")

    def _on_storage(self, act: Callable[[int], None]) -> None:
        with as_storage_errors(OSError):
            act(self.step)

    def _abandon(self) -> None:
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


def _raise(error: Exception) -> None:
    raise error


class Snapshot:
    """A state in host memory, to write again after training has moved on.

    It contains this process's shards. `np.asarray` keeps its result with the shard, so these are
    mostly the very host copies that a save makes anyway.
    """

    def __init__(self, arrays: Mapping[str, jax.Array]) -> None:
        self._leaves = {name: _Leaf.of(array) for name, array in arrays.items()}

    def arrays(self) -> dict[str, jax.Array]:
        """Return the state's leaves by name, sharded as they were."""
        return {name: leaf.rebuild() for name, leaf in self._leaves.items()}


@attrs.frozen
class _Leaf:
    shape: tuple[int, ...]
    sharding: jax.sharding.Sharding
    shards: list[tuple[Any, np.ndarray]]
    key_impl: str | None

    @classmethod
    def of(cls, array: jax.Array) -> "_Leaf":
        # Random keys have a dtype of jax's own that numpy lacks; their data are plain uint32.
        is_key = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
        key_impl = str(jax.random.key_impl(array)) if is_key else None
        plain = jax.random.key_data(array) if is_key else array
        return cls(plain.shape, plain.sharding, _host_shards(plain), key_impl)

    def rebuild(self) -> jax.Array:
        sharding = self.sharding
        # Back on the devices the state would be there twice, next to the one that trains.
        if any(device.platform != "cpu" for device, _ in self.shards):
            sharding = sharding.with_memory_kind("pinned_host")
        kind = sharding.memory_kind
        parts = [
            jax.device_put(data, jax.sharding.SingleDeviceSharding(device, memory_kind=kind))
            for device, data in self.shards
        ]
        whole = jax.make_array_from_single_device_arrays(self.shape, sharding, parts)
        return jax.random.wrap_key_data(whole, impl=self.key_impl) if self.key_impl else whole


def _host_shards(array: jax.Array) -> list[tuple[Any, np.ndarray]]:
    """Return each device with its data; replicas share one copy, the one that is written."""
    # Nothing is gathered: `addressable_shards` alone,
    # so a process holds its part of the state only.
    shards = sorted(array.addressable_shards, key=lambda shard: shard.replica_id)
    # The lowest replica_id wins, as in Orbax: that shard has a host copy already.
    written = {str(shard.index): shard.data for shard in reversed(shards)}
    for data in written.values():
        data.copy_to_host_async()
    return [(shard.device, np.asarray(written[str(shard.index)])) for shard in shards]
