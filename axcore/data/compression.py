"""Files as bytes and as text: decompressed, and without the mark that some editors begin with.

Every source of text opens its files here, so that the same text behind gzip, zstd or a byte order
mark gives the same documents.
"""

import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator
from typing import IO, Any

from axcore.config.json_files import BYTE_ORDER_MARK
from axcore.data.files import NamedFile, check_is_regular, explain_decoding, unreadable
from axcore.errors import DataError
from axcore.extras import import_extra

# Neither is UTF-8, nor the beginning of a tar whose first name is: no text is taken for one.
_MAGIC = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}
COMPRESSED_SUFFIXES = tuple(_MAGIC)
_CHUNK = 1 << 15


def is_compressed(file: NamedFile) -> bool:
    """Says whether a file begins as one of the compressed formats does, or is named so.

    Raises:
        DataError: The file cannot be read.
    """
    with _explained(file), file.path.open("rb") as raw:
        return _format_of(raw, file) is not None


@contextlib.contextmanager
def open_decompressed(file: NamedFile) -> Iterator[IO[bytes]]:
    """Opens a file to read; what it yields is decompressed where the file is gzip or zstd.

    Raises:
        DataError: The file cannot be read, or not to its end.
    """
    with _explained(file), file.path.open("rb") as raw:
        yield _decompressed(raw, _format_of(raw, file))


def read_text(file: NamedFile) -> str:
    """Returns the text of a file, its line ends as they are.

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
            hint="Convert the file to UTF-8 (iconv -f FROM -t utf-8), or set on_bad_file='skip'.",
        ) from error


@contextlib.contextmanager
def _explained(file: NamedFile) -> Iterator[None]:
    """Names the file in whatever is raised of what cannot be opened or decompressed."""
    try:
        check_is_regular(file)
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(file, error) from error
    except OSError as error:
        raise unreadable(file, error) from error
    except Exception as error:
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
    """Returns the suffix of a file's format: by its first bytes, or else by its name.

    The name alone is believed too, so that a damaged file is not read as if it were text.
    """
    begin = raw.peek(4)
    found = next((suffix for suffix, magic in _MAGIC.items() if begin.startswith(magic)), None)
    named = file.path.suffix.lower()
    return found or (named if named in COMPRESSED_SUFFIXES else None)


def _decompressed(raw: IO[bytes], suffix: str | None) -> IO[bytes]:
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
    if suffix == ".zst":
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
        """Fills a buffer as far as it goes; 0 at the end."""
        while not self._ready:
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
