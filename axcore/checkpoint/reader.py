"""Read steps: compare them with their manifests and with the template, and restore them."""

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import attrs
import jax

from axcore.checkpoint import store
from axcore.checkpoint.leaves import describe, leaf_spec, mismatches, name_leaves
from axcore.checkpoint.manifest import (
    MANIFEST_NAME,
    DamagedCheckpointError,
    FileRecord,
    Manifest,
    find_damage_together,
    from_json,
    read_manifest,
    to_json,
)
from axcore.checkpoint.storage import CheckpointWarning, RunStorage, as_storage_errors
from axcore.distributed import (
    all_gather_object,
    broadcast_object,
    decide_together,
    is_process_zero,
    shard_for_process,
)
from axcore.errors import CheckpointError
from axcore.progress import working

_Result = TypeVar("_Result")


class Restored(NamedTuple):
    """What `restore` gives back."""

    step: int
    state: Any
    extra: dict[str, Any]


@attrs.define
class StepStatus:
    """What this process has learnt about steps; its reader and its writer share it.

    Attributes:
        intact: Steps whose files were compared with their manifest.
        damaged: Steps that differ from what was saved.
    """

    intact: set[int] = attrs.field(factory=set)
    damaged: set[int] = attrs.field(factory=set)

    def set_intact(self, step: int) -> None:
        """Note that a step is as it was saved."""
        self.intact.add(step)
        self.damaged.discard(step)

    def set_damaged(self, step: int) -> None:
        """Note that a step is not as it was saved."""
        self.damaged.add(step)
        self.intact.discard(step)


class CheckpointReader:
    """The reader of one storage; it writes nothing."""

    def __init__(
        self,
        steps: RunStorage,
        status: StepStatus,
        *,
        falls_back: bool,
        single_replica_restore: bool,
    ) -> None:
        self._steps = steps
        self._single_replica_restore = single_replica_restore
        self._status = status
        self._falls_back = falls_back

    def committed(self) -> tuple[int, ...]:
        """Return the committed steps, oldest first."""
        # One process looks and all believe it: on a shared file system a rename may show
        # to one host later than to another, and the hosts would restore different steps.
        return tuple(broadcast_object("listing checkpoints", lambda: list(self._steps.committed())))

    def known_good(self) -> tuple[int, ...]:
        """Return the steps that are marked as good, oldest first."""
        listed = lambda: list(self._steps.known_good())  # noqa: E731
        return tuple(broadcast_object("listing known good checkpoints", listed))

    def restore_newest(self, template: Any, *, at_or_before: int | None, partial: bool) -> Restored:
        """Restore the newest intact step; see `Checkpointer.restore`."""
        newest_first = [
            step
            for step in reversed(self.committed())
            if at_or_before is None or step <= at_or_before
        ]
        if not newest_first:
            raise CheckpointError(
                "there is no checkpoint",
                where=str(self._steps.root),
                hint="name the directory of a run that has saved at least one step",
            )
        damaged: list[DamagedCheckpointError] = []
        for step, older in zip(newest_first, (*newest_first[1:], None), strict=True):
            try:
                return self.restore(step, template, partial=partial)
            # This error alone: one that does not fit the template, or a lost network, must end
            # the restore. To try older steps would hide the cause and throw away work.
            except DamagedCheckpointError as error:
                damaged.append(error)
                self._pass_over(step, older, error)
        # From the first, the newest step's: what people look for is why the last save is unusable.
        raise self._nothing_whole(damaged) from damaged[0]

    def restore(self, step: int, template: Any, *, partial: bool) -> Restored:
        """Restore one step, and no other; from another copy where the storage has one."""

        def read() -> Restored:
            with self._releasing(step):
                return self._restore(step, template, partial=partial)

        return self._from_whole(step, read)

    def verify_or_replace(self, step: int) -> None:
        """Verify a step; put another copy in its place where it is damaged and there is one."""
        self._from_whole(step, lambda: self.verify(step))

    def load(self, step: int, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
        """Return some arrays of a step that was verified."""
        try:
            stored_as, manifest = self._open(step)
            needed = self._files_of(manifest, self._needed(manifest, wanted))
            # Empty where all processes share the files, which were verified.
            self._check(step, self._fetch(step, stored_as, needed))
        except CheckpointError:
            # In all processes: what one has fetched and not compared is not new the next time.
            self._steps.release(step)
            raise
        return store.load(self._steps.path(step), manifest, wanted)

    def _from_whole(self, step: int, read: Callable[[], _Result]) -> _Result:
        try:
            return read()
        except DamagedCheckpointError as error:
            # Process 0 alone moves files; the verdict of all was the same, as damage is gathered.
            replace = lambda: self._steps.replace_damaged(step)  # noqa: E731
            if not broadcast_object("replacing a damaged checkpoint", replace):
                raise
            self._warn(
                f"{error.what}. It is quarantined in {self._steps.root}, and its copy restored."
            )
        # Once, and outside of `try`: a replica that is damaged as well is an error, not a loop.
        return read()

    def _restore(self, step: int, template: Any, *, partial: bool) -> Restored:
        stored_as, manifest = self._open(step)
        wanted = {name: describe(leaf) for name, leaf in name_leaves(template).items()}
        specs = {name: leaf_spec(leaf) for name, leaf in wanted.items()}
        # Before anything is read: a wrong config is reported
        # after milliseconds, not after verifying terabytes.
        problems = mismatches(manifest.leaves, specs, partial=partial)
        if problems:
            raise CheckpointError(
                f"step {step} does not fit what is to be restored\n" + "\n".join(problems),
                where=self._steps.place_of(step),
                hint="restore with the config that the checkpoint was saved with",
            )
        size = sum(record.num_bytes for record in manifest.files.values())
        with working(f"restoring step {step}", size):
            # The full step is verified before any of it is used: TensorStore restores a flipped
            # bit without a word.
            self._verify(step, stored_as, manifest, self._needed(manifest, wanted))
            try:
                arrays = store.load(self._steps.path(step), manifest, wanted)
            # A note, not a wrapper: callers distinguish errors by their types.
            except Exception as error:
                error.add_note(f"while restoring step {step} from {self._steps.place_of(step)}")
                raise
        # By name, not by position: the order of leaves in the
        # template need not be the order in the checkpoint.
        state = jax.tree.unflatten(jax.tree.structure(template), [arrays[name] for name in wanted])
        return Restored(step, state, dict(manifest.extra))

    def manifest(self, step: int) -> Manifest:
        """Return the manifest of a step."""
        with self._releasing(step):
            return self._open(step)[1]

    def _open(self, step: int) -> tuple[str, Manifest]:
        """Return what `fetch` needs for a step, and its manifest."""
        known = self.committed()
        if step not in known:
            raise CheckpointError(
                f"there is no checkpoint of step {step}; "
                f"there are: {', '.join(map(str, known)) or '(none)'}",
                where=str(self._steps.root),
            )
        # Sent along, not read by each: with thousands of processes one file would be a hot
        # spot, and each might see another version while a replica is put in its place.
        stored_as, body = broadcast_object("reading a manifest", lambda: self._read(step))
        return stored_as, from_json(body)

    def _read(self, step: int) -> tuple[str, dict[str, Any]]:
        self._steps.prepare(step)
        try:
            manifest = read_manifest(self._steps.path(step))
        except DamagedCheckpointError as error:
            raise self._damage(step, [error.what]) from error
        # A step directory that was copied under another number
        # would train on with a wrong schedule and data position.
        if manifest.step != step:
            raise self._damage(step, [f"{MANIFEST_NAME} is that of step {manifest.step}"])
        return self._steps.stored_as(step), to_json(manifest)

    def verify(self, step: int) -> None:
        """Compare every file of a step with its record; each process reads a part of them."""
        with self._releasing(step):
            stored_as, manifest = self._open(step)
            self._verify(step, stored_as, manifest, set())

    @contextmanager
    def _releasing(self, step: int) -> Iterator[None]:
        """Remove what was fetched, however it went."""
        try:
            yield
        finally:
            self._steps.release(step)

    def _verify(
        self, step: int, stored_as: str, manifest: Manifest, needed: Collection[str]
    ) -> None:
        """Verify a step; this process reads what is in the databases that it needs.

        Whatever no process needs is divided between all.
        """
        union: Callable[[list[list[str]]], list[str]] = lambda parts: sorted({*chain(*parts)})  # noqa: E731
        needed_by_any = decide_together(
            "what is needed of a checkpoint", lambda: sorted(needed), union
        )
        own = self._files_of(manifest, needed)
        needed_by_one = self._files_of(manifest, needed_by_any)
        others = [one for one in manifest.files.items() if one[0] not in needed_by_one]
        own.update(shard_for_process(others))
        self._fetch(step, stored_as, own)
        self._check(step, own)
        self._status.set_intact(step)

    def _needed(self, manifest: Manifest, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> set[str]:
        """Return the databases that this process has to fetch to load arrays."""
        return set() if self._steps.is_shared else store.databases_of(manifest, wanted)

    def _files_of(self, manifest: Manifest, databases: Collection[str]) -> dict[str, FileRecord]:
        return {
            name: record
            for name, record in manifest.files.items()
            if any(name.startswith(f"{database}/") for database in databases)
        }

    def _fetch(
        self, step: int, stored_as: str, files: Mapping[str, FileRecord]
    ) -> dict[str, FileRecord]:
        """Fetch files that this process is to read; return those that were not verified yet."""
        if self._single_replica_restore:
            return self._steps.fetch_once(step, stored_as, files)
        new: dict[str, FileRecord] = {}

        def fetch() -> None:
            with as_storage_errors(OSError):
                new.update(self._steps.fetch(step, stored_as, files))

        # Before they are compared: that a store does not answer is
        # no damage, for which the run would go back to an older step.
        all_gather_object("fetching a checkpoint", fetch)
        return new

    def _check(self, step: int, own: Mapping[str, FileRecord]) -> None:
        problems = find_damage_together("verifying a checkpoint", self._steps.path(step), own)
        if problems:
            raise self._damage(step, problems)

    def _damage(self, step: int, problems: list[str]) -> DamagedCheckpointError:
        return DamagedCheckpointError(
            f"step {step} is damaged: " + "; ".join(problems),
            where=self._steps.place_of(step),
            hint="put back the damaged files from a copy, or restore an older step",
        )

    def _nothing_whole(self, damaged: list[DamagedCheckpointError]) -> DamagedCheckpointError:
        return DamagedCheckpointError(
            "no checkpoint is intact\n" + "\n".join(error.what for error in damaged),
            where=str(self._steps.root),
            hint="put back the damaged files from a copy, or start again in another directory",
        )

    def _pass_over(self, step: int, older: int | None, error: DamagedCheckpointError) -> None:
        """Warn that a damaged step is skipped, or raise if it may not be."""
        self._status.set_damaged(step)
        if not self._falls_back:
            # The hint depends on the setting, which the place that raised does not know.
            error.hint = "set on_damage to 'fall_back', or restore an older step by its number"
            raise error
        if older is not None:
            self._warn(
                f"{error.what}. It is left as it is in {self._steps.place_of(step)} until this run "
                f"saves, which quarantines it; going back to step {older}."
            )

    def _warn(self, text: str) -> None:
        """Warn once, however many processes there are."""
        if is_process_zero():
            warnings.warn(text, CheckpointWarning, stacklevel=5)
