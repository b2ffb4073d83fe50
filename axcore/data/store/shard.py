"""A shard: the tokens of some documents of a split, end to end, and where each document begins.

NAME.tokens   [N] little-endian integers; see `axcore.data.packing.packing`
NAME.pairs    [D + 1] little-endian int64: the number of each document's first pair of tokens, then
              the number of all pairs; document i begins at token `pairs[i] + i`
"""

import ctypes
import os
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import attrs
import numpy as np
from numpy.typing import NDArray

from axcore.data.packing.packing import Pairs, join_tokens, read_pairs, tokens_as
from axcore.errors import DataError
from axcore.whole_files import check_is_regular, open_regular, whole_file

TOKENS, PAIRS = ".tokens", ".pairs"
_PAIR = np.dtype("<i8")
_CHUNK = 1 << 20


_PROT_READ, _MAP_SHARED = 1, 1
_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


@attrs.frozen
class ShardInfo:
    """What the manifest says about a shard.

    Attributes:
        name: Of its files, without suffix.
        documents: D.
        tokens: N.
        digest: Of the bytes of both files.
    """

    name: str
    documents: int
    tokens: int
    digest: str

    @property
    def num_pairs(self) -> int:
        """Pairs of a token and the one after it in its document."""
        return self.tokens - self.documents


class ShardWriter:
    """Writes the documents of a shard as they come; the files appear when the writer is closed."""

    def __init__(self, folder: Path, name: str, dtype: np.dtype[Any]) -> None:
        self._folder, self._name, self._dtype = folder, name, dtype
        self._files = ExitStack()
        self._documents = self._tokens = 0
        self._digests = [blake2b(digest_size=16) for _ in (TOKENS, PAIRS)]

    def __enter__(self) -> Self:
        self._out = [
            self._files.enter_context(whole_file(self._folder / f"{self._name}{suffix}"))
            for suffix in (TOKENS, PAIRS)
        ]
        # A first 0, so that document i is between entries i and i + 1.
        self._write(1, np.zeros(1, _PAIR))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._files.__exit__(kind, error, traceback)

    def add(self, documents: Sequence[NDArray[Any]]) -> None:
        """Add documents but those of a single token, which have nothing to predict."""
        stored = [tokens for tokens in documents if len(tokens) > 1]
        if not stored:
            return
        lengths = np.fromiter(map(len, stored), np.int64, len(stored))
        num_pairs = self._tokens - self._documents
        self._write(0, tokens_as(join_tokens(stored), self._dtype))
        self._write(1, num_pairs + np.cumsum(lengths - 1, dtype=_PAIR))
        self._documents += len(stored)
        self._tokens += int(lengths.sum())

    def info(self) -> ShardInfo:
        """Return what was written so far."""
        digest = blake2b(b"".join(one.digest() for one in self._digests), digest_size=16)
        return ShardInfo(self._name, self._documents, self._tokens, digest.hexdigest())

    def _write(self, which: int, array: NDArray[Any]) -> None:
        # Digested as they are written, so that nothing is read back.
        data = array.tobytes()
        self._digests[which].update(data)
        self._out[which].write(data)


class Shard:
    """A shard, mapped into memory: opening it reads nothing."""

    def __init__(self, folder: Path, info: ShardInfo, dtype: np.dtype[Any]) -> None:
        """Map the files.

        Raises:
            DataError: One is missing, or is not as long as the manifest says.
        """
        self.tokens = _mapped(folder / f"{info.name}{TOKENS}", dtype, info.tokens)
        self.first_pair = _mapped(folder / f"{info.name}{PAIRS}", _PAIR, info.documents + 1)

    def read(self, begin: int, end: int) -> Pairs:
        """Return the pairs from number `begin` to before `end`."""
        return read_pairs(self.tokens, self.first_pair, begin, end)

    def document(self, index: int) -> NDArray[Any]:
        """Return the tokens of a document."""
        begin, end = (int(pair) for pair in self.first_pair[index : index + 2])
        return self.tokens[begin + index : end + index + 1]


def shard_digest(folder: Path, name: str) -> str:
    """Return the digest of a shard's files as they are now."""
    digests = [_file_digest(folder / f"{name}{suffix}") for suffix in (TOKENS, PAIRS)]
    return blake2b(b"".join(digests), digest_size=16).hexdigest()


def _file_digest(path: Path) -> bytes:
    digest = blake2b(digest_size=16)
    with _opened(path) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.digest()


def _mapped(path: Path, dtype: np.dtype[Any], length: int) -> NDArray[Any]:
    with _opened(path) as file:
        size = file.seek(0, 2)
    # A file that is too short can be mapped all the same, and reading past its end kills the
    # process with SIGBUS.
    if size != length * dtype.itemsize:
        raise DataError(
            f"{path.name} has {size} bytes; {length * dtype.itemsize} were written.",
            where=str(path),
            hint="Copy the store again, or build it again.",
        )
    return _map_file(path, dtype, length)


def _opened(path: Path) -> IO[bytes]:
    try:
        return open_regular(path)
    except OSError as error:
        raise DataError(
            f"{path.name} cannot be read: {error.strerror}.",
            where=str(path),
            hint="Copy the store again, or build it again.",
        ) from error


def _map_file(path: Path, dtype: np.dtype[Any], length: int) -> NDArray[Any]:
    """Return `length` values of a file, read-only; the mapping ends with the last view of it.

    Differs: `numpy.memmap` and `mmap` keep the file open up to Python 3.12, and a process may have
    1024 files open by default.

    Raises:
        OSError: The file cannot be read or mapped.
    """
    size = length * dtype.itemsize
    if not size:
        return np.zeros(0, dtype)
    check_is_regular(path)
    descriptor = os.open(path, os.O_RDONLY)
    # By ctypes, for the descriptor can be closed at once; see `Differs`.
    try:
        address = _MMAP(None, size, _PROT_READ, _MAP_SHARED, descriptor, 0)
        if address == ctypes.c_void_p(-1).value:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(path))
    finally:
        os.close(descriptor)
    memory: Any = (ctypes.c_char * size).from_address(address)
    # At exit the kernel unmaps it; unmapping earlier could take memory from arrays still in use.
    weakref.finalize(memory, _MUNMAP, address, size).atexit = False
    array: NDArray[Any] = np.ndarray((length,), dtype, buffer=memory)
    array.flags.writeable = False
    return array


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.restype, function.argtypes = result, arguments
    return function


_MMAP = _function("mmap", _POINTER, _POINTER, _SIZE, _INT, _INT, _INT, ctypes.c_long)
_MUNMAP = _function("munmap", _INT, _POINTER, _SIZE)
