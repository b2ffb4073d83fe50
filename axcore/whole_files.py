"""Writing files that appear whole, or not at all. It loads no jax."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file that takes its name once it is written and on the disk.

    Two processes may write the same file: each has a draft of its own, and one of them stays.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(draft, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        sync_path(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def sync_path(path: Path) -> None:
    """Makes a file's content, or a folder's list of names, durable on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a small file: a reader, or a crash, sees the old content or the new, never a part."""
    with whole_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
