"""The cache of data: token stores that training built, and copies of remote files.

Copies have a bounded size together, and the processes of a machine share them:

PATH           the copy
PATH.version   what it is a copy of; there only when the copy is whole
PATH.lock      held by whoever reads the copy, and alone by whoever makes or removes it
"""

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import IO, TYPE_CHECKING

import attrs

from axcore.config.json_files import read_json_file
from axcore.data.sources.remote import RemoteFile, check_unchanged, download
from axcore.errors import DataError
from axcore.whole_files import whole_file, write_whole

if TYPE_CHECKING:
    from axcore.data.sources.files import NamedFile

CACHE = "AXCORE_DATA_CACHE"
"""The variable that says where stores and copies of remote files are kept."""

_CACHE_GIB = "AXCORE_DATA_CACHE_GIB"
"""The variable that says how large all copies of remote files may be together."""

# Some dozens of usual shards; a home directory is often not larger than a few times that.
_DEFAULT_GIB = 50.0


_VERSION, _LOCK = ".version", ".lock"


def cache_folder() -> Path:
    """Return where stores are kept that training built by itself, and copies of remote files."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(CACHE) or Path(home) / "axcore" / "data")


def _largest_cache() -> int:
    """Return the bytes that all copies of remote files may have together.

    Raises:
        DataError: The variable is not a number.
    """
    said = os.environ.get(_CACHE_GIB, str(_DEFAULT_GIB))
    try:
        return int(float(said) * 2**30)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{_CACHE_GIB} is {said!r}, not a number.", where=_CACHE_GIB) from error


def _copies_folder() -> Path:
    """Return where copies of remote files are kept."""
    return cache_folder() / "files"


def path_of_copy(url: str) -> Path:
    """Return where the copy of a file is: in one folder with those of the files next to it."""
    folder, _, name = url.rpartition("/")
    return _copies_folder() / blake2b(folder.encode(), digest_size=16).hexdigest() / name


@contextmanager
def local_copies(files: Sequence["NamedFile"]) -> Iterator[None]:
    """See to it that the paths of files can be read, as long as the context lasts.

    Raises:
        DataError: A remote file is not what it was when it was listed, cannot be read, or is larger
            than all copies together may be.
    """
    with ExitStack() as stack:
        for file in files:
            if file.remote is not None:
                stack.enter_context(_held(file.path, file.remote))
        yield


@contextmanager
def _held(path: Path, remote: RemoteFile) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(_beside(path, _LOCK), "a") as lock:
        # Shared among readers: a copy must not be removed while anybody has it mapped.
        fcntl.flock(lock, fcntl.LOCK_SH)
        # Changing a lock from exclusive to shared is not atomic: in between, another process may
        # take it and remove the copy. So the copy is checked again each time.
        while not _is_copy(path, remote):
            # Exclusive from here: of several processes on this machine one downloads.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_copy(path, remote):  # nobody else made it while this process waited
                _fetch(path, remote)
            fcntl.flock(lock, fcntl.LOCK_SH)
        # When it was last read; access times are switched off on many file systems.
        os.utime(_beside(path, _VERSION))
        yield


def _is_copy(path: Path, remote: RemoteFile) -> bool:
    try:
        version = read_json_file(_beside(path, _VERSION))
        return bool(version == attrs.asdict(remote) and path.stat().st_size == remote.size)
    except (OSError, ValueError):
        return False


def _fetch(path: Path, remote: RemoteFile) -> None:
    check_unchanged(remote)
    # The version is removed first and written last: a copy without a version is not used, so a
    # kill at any moment leaves nothing that is taken for a copy.
    _beside(path, _VERSION).unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    with whole_file(path) as draft:
        _take_room(draft, remote)
        download(remote, draft)
    write_whole(_beside(path, _VERSION), json.dumps(attrs.asdict(remote)))


def _take_room(draft: IO[bytes], remote: RemoteFile) -> None:
    """Make a draft as long as it will be, once the copies read longest ago have made room."""
    room = _largest_cache()
    root = _copies_folder()
    with open(root / _LOCK, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # By locks rather than by copies, so that drafts of killed processes count as well.
        copies = [one.with_suffix("") for one in root.glob(f"*/*{_LOCK}")]
        size = {copy: sum(one.stat().st_size for one in _files_of(copy)) for copy in copies}
        used = sum(size.values())
        for copy in sorted(copies, key=_last_read):
            if used + remote.size <= room:
                break
            if size[copy] and _removed(copy):
                # Removed or not, a copy that somebody reads stays, and its bytes count.
                used -= size[copy]
        if used + remote.size > room:
            raise DataError(
                f"{remote.url} has {remote.size:,} bytes; of the {room:,} for copies of remote "
                f"files {used:,} are in use.",
                where=str(root),
                hint=f"Set {_CACHE_GIB} to more, or read with fewer processes.",
            )
        # The size is claimed while the lock is held, so that two downloads do not count on the same
        # free space.
        os.truncate(draft.fileno(), remote.size)


def _removed(copy: Path) -> bool:
    """Remove a copy; False where somebody reads or makes it."""
    with open(_beside(copy, _LOCK), "a") as lock:
        try:
            # Without waiting: whoever reads this copy may be waiting for space too.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        _beside(copy, _VERSION).unlink(missing_ok=True)
        for file in _files_of(copy):
            file.unlink(missing_ok=True)
        return True


def _files_of(copy: Path) -> list[Path]:
    """Return a copy and its drafts, those of killed processes too."""
    drafts = [one for one in copy.parent.iterdir() if _is_draft(one.name, copy.name)]
    return [*drafts, copy] if copy.exists() else drafts


def _is_draft(name: str, of: str) -> bool:
    return name.startswith(f"{of}.") and name.endswith(".tmp") and _VERSION not in name[len(of) :]


def _last_read(copy: Path) -> float:
    try:
        return _beside(copy, _VERSION).stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
