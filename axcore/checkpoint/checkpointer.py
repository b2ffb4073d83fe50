"""`Checkpointer`: saves the states of a run, and restores the newest that is undamaged.

The parts: a storage (`storage.py`) commits and deletes steps, `writer.py` fills one, `reader.py`
checks and restores one, `chunks.py` says which process writes what, `store.py` moves arrays to the
disk and back, `manifest.py` checks that what is there is what was saved.
"""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import jax

from axcore.checkpoint.manifest import Manifest
from axcore.checkpoint.reader import CheckpointReader, Restored, StepStatus
from axcore.checkpoint.save import RetryPolicy
from axcore.checkpoint.storage import open_storage
from axcore.checkpoint.writer import CheckpointWriter
from axcore.config import REQUIRED, Configurable, PositiveFloat, PositiveInt, config
from axcore.distributed import process_count
from axcore.errors import CheckpointError


class Checkpointer(Configurable):
    """The saves and restores of one run.

    One run writes into a directory at a time; any number may read from it. Nothing is written
    before the first `save`. In a run of several processes each calls the same methods in the same
    order, on a file system that all share (`is_shared`) or each on a disk of its own; what goes
    wrong in one is raised in all. How many there are may change between a save and a restore.
    """

    @config
    class Config(Configurable.Config["Checkpointer"]):
        """How often to save, and what to keep.

        `directory` is absolute or relative to the working directory, or `SCHEME://PLACE` where a
        plugin brings such a storage; a run whose config leaves it out keeps steps in its own
        directory. `keep` is the number of newest steps kept (None: all); damaged ones do not count,
        and the newest that is known to be good. `saves_in_background` lets
        training continue while a step is written; not on Python 3.12.0 to 3.12.2, which could not
        finish the save of a process that ends without `close`.
        `tries` is how often a step is written while the disk fails, with a warning each time: first
        after `retry_after_s`, then after twice as long, at most a minute. The state is kept in host
        memory until the step is committed.
        `on_damage` says what `restore` does where the newest step is damaged and no step was asked
        for by number: go back to the newest intact one with a warning, or stop.
        `single_replica_restore`: what several processes need of a step in an object store, such as
        replicated parameters, one of them reads, and the others receive it over the interconnect.
        """

        directory: str = REQUIRED
        every_steps: PositiveInt = 1000
        keep: PositiveInt | None = 3
        saves_in_background: bool = True
        tries: PositiveInt = 8
        retry_after_s: PositiveFloat = 1.0
        on_damage: Literal["fall_back", "stop"] = "fall_back"
        single_replica_restore: bool = False

    folder_fields = ("directory",)

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self._every_steps = cfg.every_steps
        self._saves_in_background = cfg.saves_in_background
        self._steps = open_storage(cfg.directory)
        if cfg.single_replica_restore and self._steps.is_shared and process_count() > 1:
            raise CheckpointError(
                f"single_replica_restore needs an object store; {process_count()} processes read "
                f"from a disk that they share",
                where="checkpoint.single_replica_restore",
                hint="--set checkpoint.single_replica_restore=False",
            )
        status = StepStatus()
        retry_policy = RetryPolicy(tries=cfg.tries, wait_s=cfg.retry_after_s)
        self._writer = CheckpointWriter(
            self._steps, status, keep=cfg.keep, retry_policy=retry_policy
        )
        self._reader = CheckpointReader(
            self._steps,
            status,
            falls_back=cfg.on_damage == "fall_back",
            single_replica_restore=cfg.single_replica_restore,
        )

    @classmethod
    def for_run(cls, cfg: Config, run: Path) -> "Checkpointer":
        """Return the checkpointer of a run: in the run's directory, unless it names another."""
        is_named = cfg.directory is not REQUIRED
        # `is not REQUIRED`, not truth: a missing value is an object of
        # its own, and an empty string is a directory that somebody gave.
        return cfg.build() if is_named else cfg.build(directory=str(run / "checkpoints"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        """The directory that contains the step directories."""
        return self._steps.root

    @property
    def is_shared(self) -> bool:
        """Whether all processes have to see `directory` on one file system."""
        return self._steps.is_shared

    def steps(self) -> tuple[int, ...]:
        """Return the committed steps, oldest first; `verify` checks that one is still whole."""
        return self._reader.committed()

    def latest(self) -> int | None:
        """Return the newest committed step, or None where there is none."""
        return max(self.steps(), default=None)

    def known_good(self) -> tuple[int, ...]:
        """Return the steps that `mark_good` has marked, by any process, oldest first."""
        return self._reader.known_good()

    def is_due(self, step: int) -> bool:
        """Return whether the config wants this step saved."""
        # Step 0 is what initialisation gives again at no
        # cost; a save there would only delay the first step.
        return step > 0 and step % self._every_steps == 0

    def save(self, step: int, state: Any, extra: Mapping[str, Any] | None = None) -> None:
        """Save a state; return once `state` may be donated, before it is on the disk.

        Waits first for the save before it.
        Committed steps at or after `step`, which a run leaves behind when it resumes from an older
        step, are renamed to `step_N.quarantined` with a warning.

        Args:
            step: The step that the state belongs to; later than the last one this object saved.
            state: A pytree of arrays and numbers, on any sharding.
            extra: Values that JSON gives back exactly.

        Raises:
            CheckpointError: The previous save failed, or this one cannot start.
        """
        self._writer.start(step, state, dict(extra or {}))
        if not self._saves_in_background:
            self.wait()

    def reset_to(self, step: int) -> None:
        """Make `step` the newest: committed steps after it are renamed to `step_N.quarantined`.

        Saving continues after `step`. Waits first for the save in flight.

        Raises:
            CheckpointError: The previous save failed, or the directory cannot be written.
        """
        self._writer.reset_to(step)

    def mark_good(self, step: int) -> None:
        """Mark a step that this object saved, verified or restored as known to be good.

        The newest such step is never deleted, whatever `keep` is. The mark is written in the
        background, after the save in flight, and is there when the run is started again.
        """
        self._writer.mark_good(step)

    def newly_committed(self) -> tuple[int, ...]:
        """Return the steps whose saves ended well since this was last asked, oldest first."""
        return self._writer.newly_committed()

    def wait(self) -> None:
        """Wait until the save in flight is committed.

        Raises:
            CheckpointError: It failed. Each failure is raised once; earlier steps are unharmed.
        """
        self._writer.wait()

    def restore(
        self,
        template: Any,
        *,
        step: int | None = None,
        at_or_before: int | None = None,
        partial: bool = False,
    ) -> Restored:
        """Restore a state, verified against what was saved.

        Args:
            template: A pytree of `jax.ShapeDtypeStruct` or arrays. Each leaf is restored into the
                leaf's own sharding; it may differ from the saved one.
            step: The step to restore; None: the newest that is whole. Damaged steps that are passed
                over are named in a warning, or end the search (`on_damage="stop"`).
            at_or_before: Where `step` is None, the newest step that may be restored.
            partial: Whether the checkpoint may contain leaves that `template` lacks.

        Raises:
            DamagedCheckpointError: The step asked for, or every step, is damaged.
            CheckpointError: There is no such step, or it does not fit the template.
        """
        # A restore while a save is in flight would not see the newest
        # step, and could read a step that the save's retention deletes.
        self.wait()
        if step is None:
            return self._reader.restore_newest(template, at_or_before=at_or_before, partial=partial)
        return self._reader.restore(step, template, partial=partial)

    def verify_or_replace(self, step: int) -> None:
        """Verify a step; a damaged one is replaced by its copy where the storage has one.

        Raises:
            DamagedCheckpointError: It is damaged, and there is no copy.
            CheckpointError: There is no such step.
        """
        self._reader.verify_or_replace(step)

    def load(self, step: int, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
        """Return some arrays of a step that was verified before, leaf by leaf if need be.

        Args:
            step: The step.
            wanted: By the names that its manifest has; shapes and dtypes are those that are saved,
                shardings may be others.
        """
        return self._reader.load(step, wanted)

    def manifest(self, step: int) -> Manifest:
        """Return what a step is made of, `extra` included, without reading its arrays.

        Raises:
            CheckpointError: There is no such step, or its manifest is damaged.
        """
        return self._reader.manifest(step)

    def verify(self, step: int) -> None:
        """Read every file of a step and compare it with what was saved.

        Raises:
            DamagedCheckpointError: Naming each file that is missing or changed.
            CheckpointError: There is no such step.
        """
        self._reader.verify(step)

    def close(self) -> None:
        """Wait for the save in flight and let other processes write here; safe to call twice.

        Raises:
            CheckpointError: The save in flight failed.
        """
        self._writer.close()
