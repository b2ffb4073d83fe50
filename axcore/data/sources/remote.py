"""Files of object stores and web servers, through fsspec's drivers: lists, versions, downloads.

What may pass is tried again: a server that is busy, a cut connection, an answer that is too short.
"""

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, TypeVar

import attrs

from axcore.errors import DataError
from axcore.extras import import_extra

T = TypeVar("T")

TRIES = 5
# With five tries seven seconds in all, which a busy server needs; a broken one is named soon.
FIRST_WAIT_S = 0.5
"""Before the second try; twice as long before each one after it."""

# A broken connection costs one piece, not the full file.
_PIECE = 16 << 20
# Servers limit the requests of one client; eight hide their latency.
_NUM_ASKING = 8
_VERSIONS = (
    "ETag", "etag", "generation", "md5Hash", "Content-MD5", "Digest",
    "LastModified", "last_modified", "Last-Modified", "mtime", "updated", "created",
)  # fmt: skip
"""What drivers call the version of a file, the surest first."""


@attrs.frozen
class RemoteFile:
    """A file elsewhere, as it was when it was listed.

    Attributes:
        url: Where it is.
        size: Its bytes.
        version: Its etag or another mark that changes when the file does; empty where the server
            has none.
    """

    url: str
    size: int
    version: str


def is_remote(folder: str) -> bool:
    """Return whether a folder is named by a URL."""
    return "://" in folder


def find_remote(folder: str, pattern: str) -> dict[str, RemoteFile]:
    """Return the files below a URL that match a glob, by their names relative to it.

    A pattern without `*`, `?` and `[` names one file, also where a server lists none.

    Raises:
        DataError: The driver is missing, the server refuses or stays away, or does not say how
            long a file is.
    """
    files, root = _open(folder)
    root = root.rstrip("/")

    def look() -> dict[str, dict[str, Any]]:
        if not any(letter in pattern for letter in "*?["):
            return {f"{root}/{pattern}": files.info(f"{root}/{pattern}")}
        found: dict[str, dict[str, Any]] = files.glob(f"{root}/{pattern}", detail=True)
        return found

    try:
        found = _with_retries(f"{folder}/{pattern}", look)
    except FileNotFoundError:
        return {}
    infos = {place: info for place, info in found.items() if info.get("type") != "directory"}
    with ThreadPoolExecutor(_NUM_ASKING) as pool:
        remotes = list(pool.map(lambda one: _described(files, *one), infos.items()))
    return {
        place.removeprefix(root).lstrip("/"): remote
        for place, remote in zip(infos, remotes, strict=True)
    }


def current_version(url: str) -> RemoteFile:
    """Return a file as it is now.

    Raises:
        FileNotFoundError: It is not there.
        DataError: The server refuses or stays away.
    """
    files, place = _open(url)
    return _described(files, place, {})


def download(remote: RemoteFile, out: IO[bytes]) -> None:
    """Write a remote file's content, piece by piece.

    Raises:
        DataError: It is not there, is not what it was when it was listed, or cannot be read.
    """
    files, place = _open(remote.url)
    for piece in _pieces(files, place, remote):
        out.write(piece)
    # Once more at the end: pieces of two versions would make a file that never was.
    check_unchanged(remote)


def check_unchanged(remote: RemoteFile) -> None:
    """Check that a file is what it was when it was listed.

    Raises:
        DataError: It is not, or is gone.
    """
    try:
        now = current_version(remote.url)
    except FileNotFoundError as error:
        raise DataError(
            f"{remote.url} was there when the source was listed, and is gone.",
            where=remote.url,
            hint="Put it back, or start again without it.",
        ) from error
    if now != remote:
        raise DataError(
            f"{remote.url} changed while it was read: it had {remote.size} bytes "
            f"({remote.version or 'no etag'}), and has {now.size} ({now.version or 'no etag'}).",
            where=remote.url,
            hint="Let nobody write the source's files while they are read, and start again.",
        )


def _with_retries(what: str, ask: Callable[[], T]) -> T:
    """Return what a call returns, which is tried again while it fails for what may pass.

    Raises:
        FileNotFoundError: The server says that there is no such file.
        DataError: It refuses, or the last try failed.
    """
    for attempt in range(1, TRIES + 1):
        try:
            return ask()
        except Exception as error:  # each driver has its own, and they share no base
            if _is_missing(error):
                raise
            if attempt == TRIES or not _may_pass(error):
                raise _unreachable(what, error, attempt) from error
            wait_s = FIRST_WAIT_S * 2 ** (attempt - 1)
            print(
                f"data: {what} cannot be read: {_said(error)}; trying again in {wait_s:g} s "
                f"({attempt} of {TRIES} tries failed)",
                file=sys.stderr,
            )
            time.sleep(wait_s)
    raise AssertionError("a try ends in an answer or an error")


def _pieces(files: Any, place: str, remote: RemoteFile) -> Iterator[bytes]:
    begin = 0
    while begin < remote.size:
        end = min(begin + _PIECE, remote.size)
        piece = _with_retries(remote.url, lambda a=begin, b=end: _piece(files, place, a, b))  # type: ignore[misc]
        # A server without ranges answers with the full file to the first request.
        if begin == 0 and len(piece) == remote.size:  # of a server that knows no ranges
            end = remote.size
        if len(piece) != end - begin:
            check_unchanged(remote)
            raise _unreachable(remote.url, _CutShortError(len(piece), end - begin), 1)
        yield piece
        begin = end


def _piece(files: Any, place: str, begin: int, end: int) -> bytes:
    piece = bytes(files.cat_file(place, start=begin, end=end))
    if len(piece) < end - begin:
        raise _CutShortError(len(piece), end - begin)
    return piece


class _CutShortError(OSError):
    def __init__(self, came: int, asked: int) -> None:
        super().__init__(f"{came} bytes came where {asked} were asked for")


def _described(files: Any, place: str, info: dict[str, Any]) -> RemoteFile:
    url: str = files.unstrip_protocol(place)
    if info.get("size") is None:
        # Listings of some servers have no sizes.
        info = _with_retries(url, lambda: files.info(place))
    if info.get("size") is None:
        raise DataError(
            f"The server does not say how long {url} is, so that a cut answer would not be "
            "noticed.",
            where=url,
            hint="Serve it with a Content-Length, or copy the file to this machine.",
        )
    marks = (f"{key} {info[key]}" for key in _VERSIONS if info.get(key))
    return RemoteFile(url, int(info["size"]), next(marks, ""))


def _open(url: str) -> tuple[Any, str]:
    core = import_extra("fsspec.core", used_by=url, error=DataError)
    scheme = url.partition("://")[0]
    try:
        # Without the caches of fsspec, which would hide that a file has changed.
        files, place = core.url_to_fs(url, skip_instance_cache=True, use_listings_cache=False)
    except ImportError as error:
        extra = "data" if scheme in ("http", "https") else "object-stores"
        raise DataError(
            f"{url} needs a driver that is not installed: {error}.",
            where=url,
            hint=f'pip install "axcore[{extra}]"',
        ) from error
    except ValueError as error:
        raise DataError(f"{url} cannot be read: {error}.", where=url) from error
    return files, place


def _is_missing(error: Exception) -> bool:
    """Return whether there is no such file; fsspec's web driver says so of busy servers, too."""
    if not isinstance(error, FileNotFoundError):
        return False
    cause = error.__cause__
    return cause is None or getattr(cause, "status", None) in (404, 410)


def _may_pass(error: Exception) -> bool:
    error = error.__cause__ if isinstance(error.__cause__, Exception) else error
    # A driver's own error often wraps the one that has the status.
    status = getattr(error, "status", None)
    if isinstance(status, int) and 400 <= status < 500:
        return status in (408, 425, 429)
    lasting = (PermissionError, ImportError, TypeError, ValueError, AttributeError, DataError)
    return not isinstance(error, (*lasting, NotImplementedError))


def _said(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError) and error.__cause__:
        error = error.__cause__
    return str(error) or repr(error)


def _unreachable(what: str, error: Exception, tries: int) -> DataError:
    times = f" after {tries} tries" if tries > 1 else ""
    return DataError(
        f"{what} cannot be read{times}: {_said(error)}.",
        where=what,
        hint="Check the URL, the rights and the connection, and run it again.",
    )
