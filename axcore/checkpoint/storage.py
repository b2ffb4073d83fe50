"""Where steps are kept: the storage that a checkpoint directory's scheme names.

`runs/tiny/checkpoints` is kept by `file`, `mirror:///fast/run?copy=/durable/run` by `mirror`. A
storage decides what steps there are, and how one appears at once or not at all; files are
written and read below the paths that it gives.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from axcore.checkpoint.manifest import FileRecord
from axcore.config import suggest_names
from axcore.errors import AxcoreError, CheckpointError
from axcore.plugins import CheckpointStorage, attributed, plugin_host
from axcore.registration import CORE

_SEPARATOR = "://"
_DEFAULT = "file"


class StorageLock(Protocol):
    """The right to write into a storage, until it is released or the process dies."""

    def release(self) -> None:
        """Give the right up; doing so twice is harmless."""


class StepLocation(Protocol):
    """Steps in one location, each complete or absent."""

    def lock(self) -> StorageLock:
        """Take the right to write, and clear what killed processes left.

        Raises:
            CheckpointError: A live process has it.
            OSError: The place cannot be written.
        """

    def committed(self) -> tuple[int, ...]:
        """Return the complete steps, oldest first."""

    def commit(self, step: int) -> None:
        """Turn a complete staging directory into the newest step, at once and durably.

        Steps at or after it belong to a history that ended; they are quarantined.
        """

    def free_bytes(self) -> int | None:
        """Return how much can be written; None where that is not known."""

    def abandon(self, step: int) -> None:
        """Remove what was written of a step that was not committed."""

    def quarantine(self, step: int) -> None:
        """Make a committed step none any more, and keep it for a human to look at."""

    def mark_good(self, step: int) -> None:
        """Note durably that a committed step is known good; doing so twice is harmless."""

    def known_good(self) -> tuple[int, ...]:
        """Return the committed steps that were marked, oldest first."""

    def delete(self, step: int) -> None:
        """Delete a step; half of it is never left as a step."""


@runtime_checkable
class StepStorage(StepLocation, Protocol):
    """What a `CheckpointStorage` record opens.

    Of several processes the first alone calls what changes anything; all ask for
    `staging_directory` and `path`, so these are paths that all of them share. Storages of the core
    may do without (`RunStorage`).
    """

    @property
    def root(self) -> Path:
        """What errors and warnings name as the place of the steps."""

    def begin(self, step: int) -> None:
        """Make `staging_directory(step)` an empty directory."""

    def staging_directory(self, step: int) -> Path:
        """Return the directory that a step is written into."""

    def replicate(self, step: int) -> None:
        """Copy a committed step to where else the storage keeps it; may be done again."""

    def at_or_after(self, step: int) -> tuple[int, ...]:
        """Return the steps that `commit(step)` quarantines."""

    def prepare(self, step: int) -> None:
        """See to it that `path(step)` can be read; nothing to do where it always can."""

    def replace_damaged(self, step: int) -> bool:
        """Put another copy of a step at `path(step)`; False where there is no other."""

    def path(self, step: int) -> Path:
        """Return the directory of a committed step."""


@runtime_checkable
class RunStorage(StepStorage, Protocol):
    """A storage as the processes of a run use it.

    Where they share its directories, what is here does nothing (`SharedStorage`). Otherwise each
    process has `staging_directory` and `path` on a disk of its own, with its part of the files, and
    calls `enter`, `share`, `leave`, `fetch` and `release` for itself.
    """

    @property
    def is_shared(self) -> bool:
        """Whether `staging_directory` and `path` are the same files in all processes."""

    def written_as(self, step: int) -> str:
        """Return what `enter` needs in all processes, once process 0 has begun a step."""

    def enter(self, step: int, written_as: str) -> None:
        """Make this process's staging directory of a step."""

    def share(self, step: int, files: Mapping[str, FileRecord]) -> None:
        """Put files of this process's staging directory where process 0 can commit them."""

    def leave(self, step: int) -> None:
        """Remove this process's staging directory, if it has one."""

    def stored_as(self, step: int) -> str:
        """Return what `fetch` needs in all processes, once process 0 has prepared a step."""

    def fetch(
        self, step: int, stored_as: str, files: Mapping[str, FileRecord]
    ) -> dict[str, FileRecord]:
        """See to it that this process finds files in `path(step)`; return those that are new.

        What is new was not compared with its record. A file that is lost stays away.
        """

    def fetch_once(
        self, step: int, stored_as: str, files: Mapping[str, FileRecord]
    ) -> dict[str, FileRecord]:
        """As `fetch`, in all processes together: what several need, one reads for all of them."""

    def release(self, step: int) -> None:
        """Remove what this process fetched of a step."""

    def place_of(self, step: int) -> str:
        """Return where a step is kept, for people to look at."""


class SharedStorage:
    """The part of `RunStorage` that does nothing, since all processes share the directories."""

    is_shared = True

    def written_as(self, step: int) -> str:
        """Return nothing of use."""
        return ""

    def enter(self, step: int, written_as: str) -> None:
        """Do nothing: process 0 made the directory."""

    def share(self, step: int, files: Mapping[str, FileRecord]) -> None:
        """Do nothing: process 0 sees the files."""

    def leave(self, step: int) -> None:
        """Do nothing: process 0 abandons the directory."""

    def stored_as(self, step: int) -> str:
        """Return nothing of use."""
        return ""

    def fetch(
        self, step: int, stored_as: str, files: Mapping[str, FileRecord]
    ) -> dict[str, FileRecord]:
        """Do nothing: the files are there."""
        return {}

    def fetch_once(
        self, step: int, stored_as: str, files: Mapping[str, FileRecord]
    ) -> dict[str, FileRecord]:
        """Do nothing: the files are there."""
        return {}

    def release(self, step: int) -> None:
        """Do nothing: the files are the step."""

    def place_of(self: StepStorage, step: int) -> str:
        """Return the path of the step."""
        return str(self.path(step))


def open_storage(directory: str) -> RunStorage:
    """Return the storage of a checkpoint directory, `SCHEME://REST` or a path.

    Raises:
        CheckpointError: No plugin brings the scheme, or it cannot make sense of the rest.
    """
    scheme, separator, rest = directory.partition(_SEPARATOR)
    name, place = (scheme, rest) if separator else (_DEFAULT, directory)
    known = {record.name: record for record in plugin_host().records(CheckpointStorage)}
    if name not in known:
        raise CheckpointError(
            f"no plugin brings the checkpoint storage {name!r}; {suggest_names(name, known)}",
            where=directory,
            hint="install the plugin that does, or name a directory",
        )
    is_own = known[name].plugin == CORE
    storage = known[name].call("fn", place, returns=RunStorage if is_own else StepStorage)
    # Errors of the core's own storages need no note; a wrapper
    # around them would only hide their types from a debugger.
    return cast(RunStorage, storage if is_own else _OfPlugin(storage))


class _OfPlugin(SharedStorage):
    """A plugin's storage; what its methods raise gains a note of whose it is."""

    def __init__(self, storage: StepStorage) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._storage, name)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            with attributed(self._storage, name):
                return value(*args, **kwargs)

        return call


def free_bytes(steps: StepStorage) -> int | None:
    """Return how much can be written; None where that is not known."""
    try:
        return steps.free_bytes()
    # For a message only: a disk that does not answer
    # must not hide the error that is being reported.
    except OSError:
        return None


def describe_free_space(free: int | None, num_bytes: int) -> str:
    """Return what a step needs and what there is."""
    space = "an unknown number" if free is None else _megabytes(free)
    return f"about {_megabytes(num_bytes)} needed, {space} free"


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"


class CheckpointWarning(UserWarning):
    """A checkpoint was skipped or quarantined, or a disk did not do as asked; nothing was lost."""


class StorageError(CheckpointError):
    """A disk or an object store did not do as asked; asking again may help."""


@contextmanager
def as_storage_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Raise errors of these kinds as a `StorageError`, which every process of a run knows."""
    try:
        yield
    except StorageError:
        # Already one, perhaps from another process: wrapping it again would repeat its text.
        raise
    except kinds as error:
        what = error.what if isinstance(error, AxcoreError) else str(error)
        raise StorageError(what) from error
