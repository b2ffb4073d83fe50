"""Where steps are kept: the storage that a checkpoint directory's scheme names.

`runs/tiny/checkpoints` is kept by `file`, `mirror:///fast/run?copy=/durable/run` by `mirror`. A
storage decides what steps there are, and how one appears whole or not at all; files are
written and read below the paths that it gives.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from axcore.config import suggest_names
from axcore.errors import AxcoreError, CheckpointError
from axcore.plugins import CheckpointStorage, attributed, plugin_host
from axcore.registration import CORE

SEPARATOR = "://"
DEFAULT = "file"


class StorageLock(Protocol):
    """The right to write into a storage, until it is released or the process dies."""

    def release(self) -> None:
        """Gives the right up; doing so twice is harmless."""


class StepPlace(Protocol):
    """Steps in one place, each there whole or not at all."""

    def lock(self) -> StorageLock:
        """Takes the right to write, and clears what killed processes left.

        Raises:
            CheckpointError: A live process has it.
            OSError: The place cannot be written.
        """

    def committed(self) -> tuple[int, ...]:
        """Returns the complete steps, oldest first."""

    def commit(self, step: int) -> None:
        """Turns a finished draft into the newest step, at once and durably.

        Steps at or after it belong to a history that ended; they are set aside.
        """

    def free_bytes(self) -> int | None:
        """Returns how much can be written; None where that is not known."""

    def abandon(self, step: int) -> None:
        """Removes what was written of a step that was not committed."""

    def set_aside(self, step: int) -> None:
        """Makes a committed step none any more, and keeps it for a human to look at."""

    def mark_good(self, step: int) -> None:
        """Notes durably that a committed step is known good; doing so twice is harmless."""

    def known_good(self) -> tuple[int, ...]:
        """Returns the committed steps that were marked, oldest first."""

    def delete(self, step: int) -> None:
        """Deletes a step; half of it is never left as a step."""


@runtime_checkable
class StepStorage(StepPlace, Protocol):
    """What a `CheckpointStorage` record opens.

    Of several processes the first alone calls what changes anything; all ask for `draft` and
    `path`, so these are paths that all of them share.
    """

    @property
    def root(self) -> Path:
        """What errors and warnings name as the place of the steps."""

    def begin(self, step: int) -> None:
        """Makes `draft(step)` an empty directory."""

    def draft(self, step: int) -> Path:
        """Returns the directory that a step is written into."""

    def replicate(self, step: int) -> None:
        """Copies a committed step to where else the storage keeps it; may be done again."""

    def at_or_after(self, step: int) -> tuple[int, ...]:
        """Returns the steps that `commit(step)` sets aside."""

    def prepare(self, step: int) -> None:
        """Sees to it that `path(step)` can be read; nothing to do where it always can."""

    def replace_damaged(self, step: int) -> bool:
        """Puts another copy of a step at `path(step)`; False where there is no other."""

    def path(self, step: int) -> Path:
        """Returns the directory of a committed step."""


def open_storage(directory: str) -> StepStorage:
    """Returns the storage of a checkpoint directory, `SCHEME://REST` or a path.

    Raises:
        CheckpointError: No plugin brings the scheme, or it cannot make sense of the rest.
    """
    scheme, separator, rest = directory.partition(SEPARATOR)
    name, place = (scheme, rest) if separator else (DEFAULT, directory)
    known = {record.name: record for record in plugin_host().records(CheckpointStorage)}
    if name not in known:
        raise CheckpointError(
            f"no plugin brings the checkpoint storage {name!r}; {suggest_names(name, known)}",
            where=directory,
            hint="install the plugin that does, or name a directory",
        )
    storage: StepStorage = known[name].call("fn", place, returns=StepStorage)
    return storage if known[name].plugin == CORE else cast(StepStorage, _OfPlugin(storage))


class _OfPlugin:
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
    """Returns how much can be written; None where that is not known."""
    try:
        return steps.free_bytes()
    except OSError:
        return None


def describe_room(free: int | None, num_bytes: int) -> str:
    """Returns what a step needs and what there is."""
    room = "an unknown number" if free is None else _megabytes(free)
    return f"about {_megabytes(num_bytes)} needed, {room} free"


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"


class CheckpointWarning(UserWarning):
    """A checkpoint was skipped or set aside, or a disk did not do as asked; nothing was lost."""


class StorageError(CheckpointError):
    """A disk or an object store did not do as asked; asking again may help."""


@contextmanager
def as_storage_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Raises errors of these kinds as a `StorageError`, which every process of a run knows."""
    try:
        yield
    except StorageError:
        raise
    except kinds as error:
        what = error.what if isinstance(error, AxcoreError) else str(error)
        raise StorageError(what) from error
