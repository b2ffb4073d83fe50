"""`new_folder`: a folder that is there whole or not at all."""

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
    draft = target.with_name(f"{target.name}.{uuid.uuid4().hex[:8]}.incomplete")
    draft.mkdir(parents=True)
    try:
        yield draft
    except BaseException:
        shutil.rmtree(draft)
        raise
    if target.exists():
        target.rmdir()
    draft.rename(target)
