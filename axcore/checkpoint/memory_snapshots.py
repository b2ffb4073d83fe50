"""`MemorySnapshots`: states in host memory, which outlive their processes.

<directory>/axcore-<run>/process_0/step_00000010    the part of process 0 at step 10, on its host
                                                    and on the host of its peer

A process writes its part and sends a copy to a process on the next host, in the background. Once
all have done so the step before goes: at every instant one step is whole, and the loss of one host
leaves a copy of all that it held. A part is a step with one database, as checkpoints have one of
each process; `peer_replicas.py` makes the copies.
"""

import shutil
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax

from axcore.checkpoint import store
from axcore.checkpoint.chunks import HostState, copy_to_host, own_grids, stored_arrays
from axcore.checkpoint.leaves import describe, leaf_spec, name_arrays, name_leaves
from axcore.checkpoint.lock import this_process
from axcore.checkpoint.manifest import DamagedCheckpointError, Manifest, check_extra, read_manifest
from axcore.checkpoint.peer_replicas import (
    PeerExchange,
    part_damage,
    part_fits,
    write_part,
)
from axcore.checkpoint.reader import Restored
from axcore.checkpoint.steps import StepDirectories
from axcore.checkpoint.storage import CheckpointWarning
from axcore.config import NonNegativeInt, config
from axcore.distributed import all_gather_object, is_process_zero, process_count, process_index
from axcore.errors import CheckpointError

Source = tuple[int, int]
"""A process, and a process whose part its host holds."""


class MemorySnapshots:
    """The snapshots of one run; every process calls the same methods in the same order.

    What cannot be kept costs a warning and no run.
    """

    @config
    class Config:
        """How often the state is kept in host memory, and where.

        Args:
            every_steps: Steps between snapshots; 0 for none. One waits for the one before it.
            directory: In the memory of each host, the same for all its processes; `{process}` in
                it is the index of a process, which gives each a place as on a host of its own.
        """

        every_steps: NonNegativeInt = 0
        directory: str = "/dev/shm"

    def __init__(self, cfg: Config, run: Mapping[str, str]) -> None:
        """Touch nothing yet.

        Args:
            cfg: How often, and where.
            run: Which run it is; `id` names its folder.
        """
        self._every_steps = cfg.every_steps
        # Absolute at once: the working directory may be another when the worker thread writes.
        place = Path(cfg.directory.format(process=process_index())).absolute()
        self.directory = place / f"axcore-{run['id']}"
        # A part is only used by a run with the same tag: with another number of processes the
        # chunks are cut otherwise, and after a rewind the same step has other numbers in it.
        self._tag: dict[str, Any] = {"run": dict(run), "processes": process_count()}
        self._exchange: PeerExchange | None = None
        self._kept: dict[int, StepDirectories] = {}
        self._locks: list[Any] = []
        self._worker: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None

    @property
    def is_on(self) -> bool:
        """Whether the config wants snapshots."""
        return self._every_steps > 0

    def is_due(self, step: int) -> bool:
        """Return whether the config wants a snapshot of this step."""
        return self.is_on and step % self._every_steps == 0

    # -- Keeping ---------------------------------------------------------------------------------

    def take(self, step: int, state: Any, extra: Mapping[str, Any]) -> None:
        """Keep a state; return once it is copied from the devices and may be donated.

        Waits first for the snapshot before it.
        """
        # One in flight, or host memory would hold a third copy:
        # the one before, the one being written, and this.
        self.wait()
        check_extra(dict(extra))
        arrays = name_arrays(state)
        leaves = {name: leaf_spec(array) for name, array in arrays.items()}
        # `copy_to_host` runs here, on the training thread: after `take` returns the next
        # step donates these buffers. Only what needs no device is left to the worker.
        stored = stored_arrays(arrays)
        own = copy_to_host(stored, own_grids(stored, process_index()), 0)
        keep = partial(self._store, step, own, leaves, dict(extra))
        assert self._worker is not None, "open was called"
        self._pending = self._worker.submit(keep)

    def wait(self) -> None:
        """Wait for the snapshot under way.

        Raises:
            ProcessError: Another process was lost meanwhile.
        """
        # Taken out before `result`: a failure is raised once, and does not come back from `close`.
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _store(
        self, step: int, own: HostState, leaves: Mapping[str, Any], extra: dict[str, Any]
    ) -> None:
        write = lambda staging: write_part(  # noqa: E731
            staging, step, own, leaves, {"tag": self._tag, "extra": extra}
        )
        # The gather never raises for a full memory; each reports a sentence instead.
        # Otherwise one process would keep a step that the others have thrown away.
        problems = all_gather_object("keeping a snapshot", lambda: self._try_to_store(step, write))
        if any(problems):
            self._warn(f"no snapshot of step {step} is kept: {'; '.join(filter(None, problems))}")
        # Only now, when every process has said that its part is complete: until then the snapshot
        # before this one is the one that a restore can use.
        for folder in self._kept.values():
            for other in folder.committed():
                if (other == step) if any(problems) else (other < step):
                    folder.delete(other)

    def _try_to_store(self, step: int, write: Callable[[Path], None]) -> str:
        own = process_index()
        assert self._exchange is not None, "open was called"
        try:
            self._commit(own, step, write)
            peer = self._exchange.hosts.peer_of(own)
            # Own part first, then the peer's: if sending fails, this host still has what
            # a restart in place needs, until the others' problems throw it away as well.
            if peer is not None:
                self._exchange.send(peer, own, step, self._kept[own].path(step))
        # TensorStore raises ValueError where a file cannot be written.
        except (OSError, ValueError) as error:
            return f"process {own}: {error}"
        return ""

    def _commit(self, process: int, step: int, write: Callable[[Path], None]) -> None:
        """Make a part whole in this host's memory, or leave none of it."""
        folder = self._kept[process]
        folder.begin(step)
        try:
            write(folder.staging_directory(step))
            # Read back: a copy crossed the network, and host memory may flip bits as devices do.
            if problems := part_damage(folder.staging_directory(step)):
                raise OSError("; ".join(problems))
            folder.commit(step)
        # BaseException: a KeyboardInterrupt half-way would leave a
        # staging directory that fills /dev/shm until the next run.
        except BaseException:
            folder.abandon(step)
            raise

    # -- Restoring -------------------------------------------------------------------------------

    def open(self, rewinds: int) -> None:
        """Take the right to write, and meet the other processes.

        Args:
            rewinds: How often the run went back; snapshots from before it last did are of a
                history that ended.

        Raises:
            CheckpointError: The directory cannot be used, or a live process has it.
        """
        # Before the exchange: parts that peers send carry the tag too,
        # and arrive on another thread as soon as the port is open.
        self._tag["rewinds"] = rewinds
        all_gather_object("making a directory for snapshots", self._make_directory)
        # Boot id and directory together say whose memory it is: host names may be
        # equal in containers, and `{process}` makes several places on one host.
        self._exchange = PeerExchange(f"{this_process().boot} {self.directory}", self._commit)
        hosts, own = self._exchange.hosts, process_index()
        # Only one process has the lock of a folder: who receives a part writes it.
        senders = [one for one in range(process_count()) if hosts.peer_of(one) == own]
        for process in (own, *senders):
            folder = StepDirectories(self.directory / f"process_{process}")
            self._locks.append(folder.lock())
            self._kept[process] = folder
        # One thread: snapshots must be written in the order they were taken, for `_store` deletes
        # what is older. It also keeps the names of the gathers in the same order in all processes.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="snapshots")

    def _make_directory(self) -> None:
        try:
            # 0700: /dev/shm is open to every user of the host.
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"snapshots cannot be kept: {error}",
                where="snapshots.directory",
                hint="name a directory in the memory of the host, or snapshots.every_steps=0",
            ) from error

    def restore(self, template: Any, *, newer_than: int) -> Restored | None:
        """Restore the newest step of which every process's part is intact somewhere.

        Args:
            template: As `Checkpointer.restore` takes it.
            newer_than: The newest step that there is no need to restore.

        Returns:
            None where there is no such step.
        """
        # Checked by reading manifests only. Checksums come in
        # `_send_parts`, for the one step that is chosen: to read every byte
        # of every step costs seconds of a recovery that should take one.
        wanted = {name: describe(leaf) for name, leaf in name_leaves(template).items()}
        found = self._parts(wanted)
        listed = all_gather_object("listing snapshots", lambda: [list(one) for one in found])
        steps = {step for parts in listed for _, step in parts if step > newer_than}
        for step in sorted(steps, reverse=True):
            holders = {
                (holder, process)
                for holder, parts in enumerate(listed)
                for process, at in parts
                if at == step
            }
            if self._gather_parts(step, holders):
                return self._load(step, template, wanted)
        return None

    def _parts(self, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[Source, Manifest]:
        """Return the parts of this run in this host's memory that fit, by process and step."""
        found: dict[Source, Manifest] = {}
        for process in range(process_count()):
            folder = StepDirectories(self.directory / f"process_{process}")
            for step in folder.committed():
                manifest = self._manifest(folder.path(step))
                if (
                    manifest is not None
                    and manifest.extra["tag"] == self._tag
                    and part_fits(manifest, wanted, process)
                ):
                    found[process, step] = manifest
        return found

    def _manifest(self, directory: Path) -> Manifest | None:
        try:
            return read_manifest(directory)
        except DamagedCheckpointError as error:
            warnings.warn(f"a snapshot is of no use: {error}", CheckpointWarning, stacklevel=2)
            return None

    def _gather_parts(self, step: int, holders: set[Source]) -> bool:
        """See to it that each process's host holds its part of a step, whole; False if one can't.

        A damaged part is replaced by its copy.
        """
        # Ends: each round without success removes at least one holder, and all processes
        # see the same problems, so they agree on the next round without asking again.
        while (sources := _sources(holders)) is not None:
            hand_out = partial(self._send_parts, step, sources)
            problems = all_gather_object("gathering a snapshot", hand_out)
            if not any(problems):
                return True
            for holder, lost in enumerate(problems):
                for process, what in lost:
                    holders.discard((holder, process))
                    self._warn(
                        f"process {holder}: part {process} of the snapshot of step {step} {what}"
                    )
        return False

    def _send_parts(self, step: int, sources: list[Source]) -> list[tuple[int, str]]:
        """Check the parts that are taken from this process, and send them to their owners."""
        assert self._exchange is not None, "open was called"
        own, lost = process_index(), []
        for holder, process in sources:
            if holder != own:
                continue
            directory = StepDirectories(self.directory / f"process_{process}").path(step)
            # From a fresh `StepDirectories`: `_kept` has the folders this
            # process may write, and a part may be in one that it only reads.
            try:
                if problems := part_damage(directory):
                    raise OSError("; ".join(problems))
                if process != own:
                    self._exchange.send(process, process, step, directory)
            except OSError as error:
                lost.append((process, f"is of no use: {error}"))
        return lost

    def _load(
        self, step: int, template: Any, wanted: Mapping[str, jax.ShapeDtypeStruct]
    ) -> Restored:
        directory = self._kept[process_index()].path(step)
        manifest = read_manifest(directory)
        arrays = store.load(directory, manifest, wanted)
        state = jax.tree.unflatten(jax.tree.structure(template), [arrays[name] for name in wanted])
        return Restored(step, state, dict(manifest.extra["extra"]))

    # -- Forgetting ------------------------------------------------------------------------------

    def delete_all(self, rewinds: int) -> None:
        """Let all snapshots go, where the run went back behind them."""
        self.wait()
        self._tag["rewinds"] = rewinds
        self._delete_steps(after=-1)

    def delete_after(self, step: int) -> None:
        """Let go of the snapshots that are newer than the step that the run resumes from."""
        self._delete_steps(after=step)

    def _delete_steps(self, *, after: int) -> None:
        def delete() -> None:
            # Once on each host: two processes that delete the same directory
            # would race, and one would fail on what is gone already.
            if not self._is_first_on_host():
                return
            for path in self.directory.glob("process_*"):
                folder = StepDirectories(path)
                for step in folder.at_or_after(after + 1):
                    folder.delete(step)

        all_gather_object("deleting snapshots", delete)

    def delete(self) -> None:
        """Give the memory back, once the run has ended well."""
        if self._exchange is None:
            return
        self.wait()
        # A barrier: a peer may still be sending a last part here.
        # Without it the directory could come back after it was removed.
        all_gather_object("leaving snapshots", lambda: None)
        # Asked before `close`, which takes the exchange away.
        is_first = self._is_first_on_host()
        self.close()
        if is_first:
            shutil.rmtree(self.directory, ignore_errors=True)

    def close(self) -> None:
        """Stop keeping snapshots; those that are there stay. Safe to call twice."""
        # The exchange first, so that no part arrives while the locks go.
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None
        if self._worker is not None:
            self._worker.shutdown(cancel_futures=True)
        while self._locks:
            self._locks.pop().release()

    def _is_first_on_host(self) -> bool:
        assert self._exchange is not None, "open was called"
        return self._exchange.hosts.is_first_on_host(process_index())

    def _warn(self, text: str) -> None:
        if is_process_zero():
            warnings.warn(f"{text} ({self.directory})", CheckpointWarning, stacklevel=3)


def _sources(holders: set[Source]) -> list[Source] | None:
    """Return for each process who hands its part out: its own host if it can; None if none can."""
    chosen: list[Source] = []
    for process in range(process_count()):
        able = sorted(holder for holder, held in holders if held == process)
        if not able:
            return None
        # Its own host first: no byte crosses the network,
        # and a lost host is the only case in which any does.
        chosen.append((process if process in able else able[0], process))
    return chosen
