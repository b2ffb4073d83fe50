"""Files that survive a crash: atomic writes and durable directories."""

import os
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file so that a reader, or a crash, sees the old content or the new, never a part."""
    draft = path.with_name(path.name + ".tmp")
    with open(draft, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Makes a file's content, or a directory's list of names, durable on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(root: Path) -> None:
    """Makes every file and directory under `root` durable, the innermost first."""
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            sync_path(Path(folder, name))
        sync_path(Path(folder))


def drop_cached_tree(root: Path) -> None:
    """Asks the kernel to forget the files under `root`, so that they are next read from the disk.

    They must be durable. A file system in memory ignores it; a disk may have its own cache.
    """
    for path in root.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
