"""`ObjectStore`: the calls that steps need of an object store, through fsspec's drivers.

Drivers ask again by themselves after what passes: answers such as 503, timeouts, cut connections.
What they give up on is a `StoreError`, whichever driver it came from.
"""

import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from axcore.checkpoint.faults import StorageError
from axcore.checkpoint.integrity import PIECE_BYTES, FileRecord
from axcore.errors import CheckpointError

_NUM_READERS = 4


class StoreError(StorageError, OSError):
    """An object store did not do as asked, and its driver has given up."""


class ObjectStore:
    """The objects whose names begin with a URL; names here are relative to it."""

    def __init__(self, url: str) -> None:
        """Makes no connection yet.

        Raises:
            CheckpointError: The driver is not installed.
        """
        self.url = url
        self._files, self._root = _open(url)

    def names(self, folder: str = "") -> set[str]:
        """Returns the names in a folder, folders included."""
        with self._asking(f"list {folder or 'it'}"):
            self._files.invalidate_cache()
            try:
                paths = self._files.ls(self._path(folder), detail=False)
            except FileNotFoundError:
                return set()
        return {path.rstrip("/").rpartition("/")[2] for path in paths}

    def read(self, name: str) -> bytes:
        """Returns the content of an object.

        Raises:
            FileNotFoundError: There is none.
        """
        with self._asking(f"read {name}"):
            return bytes(self._files.cat_file(self._path(name)))

    def write(self, name: str, data: bytes) -> None:
        """Writes an object, whole or not at all; replaces one of that name."""
        with self._asking(f"write {name}"):
            self._files.pipe_file(self._path(name), data)

    def create(self, name: str, data: bytes) -> bool:
        """Writes an object; False where there is one of that name."""
        with self._asking(f"create {name}"):
            try:
                self._files.pipe_file(self._path(name), data, mode="create")
            except FileExistsError:
                return False
        return True

    def upload(self, file: Path, name: str) -> None:
        """Writes a file's content as an object of a new name, whole or not at all."""
        with self._asking(f"write {name}"):
            self._files.put_file(str(file), self._path(name))

    def download(self, name: str, file: Path) -> None:
        """Writes an object's content into a file.

        Raises:
            FileNotFoundError: There is no such object.
        """
        with self._asking(f"read {name}"):
            self._files.get_file(self._path(name), str(file))

    def check(self, name: str, record: FileRecord) -> None:
        """Reads an object back and compares it with what was written.

        Raises:
            StoreError: It differs.
        """

        def crc32(start: int) -> str:
            end = min(start + PIECE_BYTES, record.num_bytes)
            return f"{zlib.crc32(self._files.cat_file(path, start=start, end=end)):08x}"

        path, starts = self._path(name), range(0, record.num_bytes, PIECE_BYTES)
        with self._asking(f"read {name} back"):
            num_bytes = self._files.info(path)["size"]
            with ThreadPoolExecutor(_NUM_READERS) as pool:
                sums = tuple(pool.map(crc32, starts)) or record.crc32
        if (num_bytes, sums) != (record.num_bytes, record.crc32):
            raise StoreError(f"{self.url}/{name} reads back otherwise than it was written")

    def delete(self, name: str) -> None:
        """Deletes an object or a folder; does nothing where there is none."""
        with self._asking(f"delete {name}"):
            self._files.invalidate_cache()
            try:
                self._files.rm(self._path(name), recursive=True)
            except FileNotFoundError:
                return

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Makes what a driver raises one kind of error: each has its own, and shares no base."""
        try:
            yield
        except (FileNotFoundError, CheckpointError):
            raise
        except Exception as error:
            raise StoreError(f"{self.url}: cannot {what}: {error or repr(error)}") from error


def _open(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs

        files, root = url_to_fs(url, skip_instance_cache=True, use_listings_cache=False)
    except ImportError as error:
        raise CheckpointError(
            f"checkpoints in {url} need a driver that is not installed: {error}",
            where="checkpoint.directory",
            hint='pip install "axcore[object-stores]"',
        ) from error
    return files, root.rstrip("/")
