"""Directories of files that survive a crash."""

import os
from pathlib import Path

from axcore.whole_files import sync_path


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
