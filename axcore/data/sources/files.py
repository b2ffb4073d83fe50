"""Files of a folder, in an order that every machine agrees on, opened and decompressed.

Every source of text opens its files here, so that the same text behind gzip, zstd or a byte order
mark gives the same documents.
"""

import contextlib
import errno
import gzip
import io
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal

import attrs

from axcore.config.json_files import BYTE_ORDER_MARK, check_is_fetched
from axcore.data.cache import path_of_copy
from axcore.data.sources.remote import RemoteFile, current_version, find_remote, is_remote
from axcore.errors import DataError
from axcore.extras import import_extra

OnBad = Literal["error", "skip"]


# Neither is UTF-8, nor the beginning of a tar whose first name is: no text is taken for one.
_MAGIC = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}
COMPRESSED_SUFFIXES = tuple(_MAGIC)
# Larger reads make zstd and gzip no faster.
_CHUNK = 1 << 15


@attrs.frozen
class NamedFile:
    """A file and its name relative to the folder it was found in, with `/` between the parts.

    Attributes:
        name: That name.
        path: Where it is on this machine; for a remote file, where its copy does while it is
            read.
        remote: Where it comes from, if not from this machine.
    """

    name: str
    path: Path
    remote: RemoteFile | None = None

    @property
    def where(self) -> str:
        """What errors call its place."""
        return str(self.path) if self.remote is None else self.remote.url

    def state(self) -> tuple[int, int | str]:
        """Return size and time, or size and version; zeros where it is not there to be read."""
        if self.remote is not None:
            return self.remote.size, self.remote.version
        # Zeros and no error: who reads the file later says what is wrong with it.
        try:
            state = self.path.stat()
        except OSError:
            return 0, 0
        return state.st_size, state.st_mtime_ns

    def beside(self, suffix: str) -> "NamedFile":
        """Return the file of the same name with another suffix, in the same folder.

        Raises:
            DataError: It is remote and not there.
        """
        name = str(Path(self.name).with_suffix(suffix))
        if self.remote is None:
            return NamedFile(name, self.path.with_suffix(suffix))
        url = self.remote.url.removesuffix(self.path.suffix) + suffix
        try:
            return NamedFile(name, path_of_copy(url), current_version(url))
        except FileNotFoundError as error:
            raise DataError(f"{url} is not there, and belongs to {self.where}.") from error


def list_files(folder: str, pattern: str) -> list[NamedFile]:
    """Return the files of `folder` that match `pattern`, sorted by name.

    Args:
        folder: A folder, or a URL such as `s3://bucket/corpus`; `~` and paths relative to the
            working directory are understood.
        pattern: A glob relative to the folder, such as `**/*.txt`.

    Raises:
        DataError: The folder is missing or is a file, nothing in it matches, or its server stays
            away.
    """
    if is_remote(folder):
        return _list_remote(folder, pattern)
    root = Path(folder).expanduser().absolute()
    if not root.exists():
        raise DataError(
            f"The data folder {folder!r} does not exist; looked for {root}.",
            hint="Create it, or set the source's folder to one that exists.",
        )
    if not root.is_dir():
        raise DataError(
            f"The data folder {folder!r} is a file, not a folder.",
            where=str(root),
            hint=f"folder={str(root.parent)!r}, glob={root.name!r}",
        )
    found = [NamedFile(path.relative_to(root).as_posix(), path) for path in _glob(root, pattern)]
    if not found:
        raise DataError(
            f"No file matches {pattern!r} in the data folder {folder!r}; {_contents(root)}.",
            where=str(root),
            hint="Put files there, or set the source's glob to match the files there.",
        )
    # File systems list files in orders of their own; documents have to come alike on every machine.
    return sorted(found, key=lambda file: file.name)


def _list_remote(folder: str, pattern: str) -> list[NamedFile]:
    found = find_remote(folder, pattern)
    if not found:
        raise DataError(
            f"No file matches {pattern!r} in {folder!r}.",
            where=folder,
            hint="Set the source's folder and glob; without a *, a glob is the name of one file, "
            "also where a server lists none.",
        )
    return [
        NamedFile(name, path_of_copy(one.url), one)
        for name, one in sorted(found.items(), key=lambda item: item[0])
    ]


def _glob(root: Path, pattern: str) -> list[Path]:
    try:
        # Dangling links stay in: reading one is an error, leaving it out would be silent.
        return [path for path in root.glob(pattern) if not path.is_dir()]
    except (ValueError, NotImplementedError) as error:
        raise DataError(
            f"The glob {pattern!r} cannot be used: {error}.",
            hint="Write it relative to the folder, for example '**/*.txt'.",
        ) from error


def _contents(root: Path) -> str:
    kinds = Counter(path.suffix or path.name for path in root.rglob("*") if path.is_file())
    if not kinds:
        return "it contains no files"
    shown = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(5))
    return f"the files it contains: {shown}"


def check_is_regular(file: NamedFile) -> None:
    """Refuse what reading might never come back from, and what is not the file itself.

    Raises:
        DataError: The file is a FIFO, a socket or a device, or a link to one; or it is a pointer
            that Git LFS left in its place.
        OSError: There is no such file.
    """
    try:
        check_is_fetched(file.path, error=DataError)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise DataError(
            f"{file.name} {str(error.strerror).removeprefix('it ')}.",
            where=file.where,
            hint="Take it out of the folder, or set the source's glob to leave it out.",
        ) from error


def unreadable(file: NamedFile, error: OSError) -> DataError:
    """Return the error for a file that the operating system does not let us read."""
    return DataError(
        f"{file.name} cannot be read: {error.strerror}.",
        where=file.where,
        hint="Make the file readable, or take it out of the folder.",
    )


def explain_decoding(error: UnicodeDecodeError, offset: int = 0) -> str:
    """Return which byte is not UTF-8; `offset` is where the decoded bytes begin in their file."""
    byte = error.object[error.start]
    return f"byte 0x{byte:02x} at offset {offset + error.start} ({error.reason})"


def warn_skipped(num_skipped: int, of_what: str, first: DataError) -> None:
    """Warn how many records a source left out, and why the first of them."""
    warnings.warn(f"{num_skipped} {of_what} left out. The first: {first.what}", stacklevel=2)


def is_compressed(file: NamedFile) -> bool:
    """Return whether a file begins as one of the compressed formats does, or is named so.

    Raises:
        DataError: The file cannot be read.
    """
    with _explained(file), file.path.open("rb") as raw:
        return _format_of(raw, file) is not None


@contextlib.contextmanager
def open_decompressed(file: NamedFile) -> Iterator[IO[bytes]]:
    """Open a file to read; what it yields is decompressed where the file is gzip or zstd.

    Raises:
        DataError: The file cannot be read, or not to its end.
    """
    with _explained(file), file.path.open("rb") as raw:
        yield _decompressed(raw, _format_of(raw, file))


def read_text(file: NamedFile) -> str:
    """Return the text of a file, its line ends as they are.

    Raises:
        DataError: The file cannot be read or is not UTF-8; the message says at which byte.
    """
    with open_decompressed(file) as stream:
        raw = stream.read()
    try:
        return raw.decode("utf-8").removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file.name} is not UTF-8: {explain_decoding(error)}.",
            where=f"{file.where}, byte {error.start}",
            hint="Convert the file to UTF-8 (iconv -f FROM -t utf-8), or set on_bad='skip'.",
        ) from error


@contextlib.contextmanager
def _explained(file: NamedFile) -> Iterator[None]:
    """Name the file in whatever is raised of what cannot be opened or decompressed."""
    try:
        check_is_regular(file)
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(file, error) from error
    except OSError as error:
        raise unreadable(file, error) from error
    except Exception as error:
        # By name, as the module may be missing, and then there is no class to compare with.
        if type(error).__name__ == "ZstdError":  # of a module that is not always installed
            raise _damaged(file, error) from error
        raise


def _damaged(file: NamedFile, error: Exception) -> DataError:
    return DataError(
        f"{file.name} cannot be decompressed: {error}.",
        where=file.where,
        hint="Copy the file again: it is cut short, damaged, or of another format.",
    )


def _format_of(raw: io.BufferedReader, file: NamedFile) -> str | None:
    """Return the suffix of a file's format: by its first bytes, or else by its name.

    The name alone is believed too, so that a damaged file is not read as if it were text.
    """
    # `peek` reads nothing away, so the stream can still be read from its beginning.
    begin = raw.peek(4)
    found = next((suffix for suffix, magic in _MAGIC.items() if begin.startswith(magic)), None)
    named = file.path.suffix.lower()
    return found or (named if named in COMPRESSED_SUFFIXES else None)


def _decompressed(raw: IO[bytes], suffix: str | None) -> IO[bytes]:
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
    if suffix == ".zst":
        # Buffered, as readers ask for a line or 512 bytes at a time.
        return io.BufferedReader(_ZstdStream(raw), 1 << 20)
    return raw


class _ZstdStream(io.RawIOBase):
    """Frames of zstd, one after another; a missing end is noticed, as the library does not."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        library = import_extra("zstandard", used_by="a file that ends in .zst", error=DataError)
        self._new_frame = library.ZstdDecompressor().decompressobj
        self._frame = self._new_frame()
        self._is_within = False
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as it goes; 0 at the end."""
        while not self._ready:
            # What follows the end of a frame belongs to the
            # next; files of `pzstd` and `cat` have many.
            data = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame, self._is_within = self._new_frame(), False
            data = data or self._raw.read(_CHUNK)
            if not data and self._is_within:
                raise EOFError("it ends within a frame")
            if not data:
                return 0
            self._is_within = True
            self._ready = memoryview(self._frame.decompress(data))
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count
