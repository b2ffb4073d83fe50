"""Where copies of remote files lie on this machine."""

from hashlib import blake2b
from pathlib import Path

from axcore.data.cache import cache_folder


def copies_folder() -> Path:
    """Returns where copies of remote files are kept."""
    return cache_folder() / "files"


def path_of_copy(url: str) -> Path:
    """Returns where the copy of a file lies: in one folder with those of the files beside it."""
    folder, _, name = url.rpartition("/")
    return copies_folder() / blake2b(folder.encode(), digest_size=16).hexdigest() / name
