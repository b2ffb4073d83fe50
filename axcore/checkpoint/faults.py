"""What goes wrong with checkpoints, as warnings and errors of their own."""

from collections.abc import Iterator
from contextlib import contextmanager

from axcore.errors import AxcoreError, CheckpointError


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
