"""Files as streams of bytes, decompressed where their names say how."""

import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator
from typing import IO, Any

from axcore.data.files import NamedFile, check_is_regular, unreadable
from axcore.errors import DataError
from axcore.extras import import_extra

_SUFFIXES = (".gz", ".zst")
_CHUNK = 1 << 15


def is_compressed(file: NamedFile) -> bool:
    """Says whether a file's name ends as one of the compressed formats does."""
    return file.path.suffix in _SUFFIXES


@contextlib.contextmanager
def open_decompressed(file: NamedFile) -> Iterator[IO[bytes]]:
    """Opens a file to read; what it yields is decompressed where the name ends in .gz or .zst.

    Raises:
        DataError: The file cannot be read, or not to its end.
    """
    try:
        check_is_regular(file)
        with file.path.open("rb") as raw:
            yield _decompressed(raw, file.path.suffix)
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


def _decompressed(raw: IO[bytes], suffix: str) -> IO[bytes]:
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
