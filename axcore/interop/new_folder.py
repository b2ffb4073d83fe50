"""`new_folder` and `new_file`: what is there whole or not at all."""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from axcore.errors import CheckpointError


@contextmanager
def new_folder(folder: Path | str) -> Iterator[Path]:
    """Yields a draft of a folder, which takes its place when the context ends without an error.

    Raises:
        CheckpointError: There is something in the folder already.
    """
    target = Path(folder).expanduser().absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(
            "there is something in the folder already",
            where=str(target),
            hint="name a new folder",
        )
    draft = _draft_of(target)
    draft.mkdir(parents=True)
    try:
        yield draft
    except BaseException:
        shutil.rmtree(draft)
        raise
    if target.exists():
        target.rmdir()
    draft.rename(target)


@contextmanager
def new_file(path: Path | str) -> Iterator[Path]:
    """Yields the draft of a file, which takes its place when the context ends without an error.

    Raises:
        CheckpointError: There is something of that name already.
    """
    target = Path(path).expanduser().absolute()
    if target.exists():
        raise CheckpointError(
            "there is something of that name already", where=str(target), hint="name a new file"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft_of(target)
    try:
        yield draft
        draft.rename(target)
    finally:
        draft.unlink(missing_ok=True)


def _draft_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.{uuid.uuid4().hex[:8]}.incomplete")
