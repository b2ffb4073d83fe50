"""Writing files that appear whole, or not at all; and reading what is a file. It loads no jax."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_SPECIAL_FILES = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFDIR: "a folder",
}


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes its name once it is written and on the disk.

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
    """Make a file's content, or a folder's list of names, durable on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a small file: a reader, or a crash, sees the old content or the new, never a part."""
    with whole_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def check_is_regular(path: Path) -> None:
    """Check that a path leads to a regular file.

    Raises:
        OSError: There is none, or it is a folder, a FIFO, a socket or a device.
    """
    _check_mode(os.stat(path).st_mode, path)


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file to read its bytes.

    `open` waits for the other end of a FIFO for ever, and reads some devices without an end.

    Raises:
        OSError: There is no such file, or it is a folder, a FIFO, a socket or a device.
    """
    check_is_regular(path)  # opening some devices has an effect already
    return open(path, "rb", opener=_open_without_waiting)


def read_regular(path: Path) -> bytes:
    """Read the bytes of a regular file; raises OSError as `open_regular` does."""
    with open_regular(path) as file:
        return file.read()


def _open_without_waiting(path: str, flags: int) -> int:
    # A FIFO may have taken the file's place since it was looked at.
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    try:
        _check_mode(os.fstat(descriptor).st_mode, Path(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _check_mode(mode: int, path: Path) -> None:
    if not stat.S_ISREG(mode):
        kind = _SPECIAL_FILES.get(stat.S_IFMT(mode), "a special file")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
