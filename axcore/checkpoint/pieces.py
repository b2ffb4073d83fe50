"""Pieces of files: what is uploaded, read and sent at once.

A file is cut where its checksums are cut (`PIECE_BYTES`). In an object store each piece of a larger
file is an object of its own, `manifest.ocdbt` or `d/5f0c....00002`: an upload that broke continues
at the first piece that is missing, and pieces are read side by side.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs

from axcore.checkpoint import manifest
from axcore.checkpoint.manifest import FileRecord

# Enough to hide the latency of requests of 64 MiB; each holds its piece in host memory.
NUM_REQUESTS = 4


@attrs.frozen
class Piece:
    """A piece of a file.

    Attributes:
        name: The file's.
        begin: Its first byte in the file.
        end: After its last byte.
        number: Which of the file's pieces it is; None where it is the only one.
    """

    name: str
    begin: int
    end: int
    number: int | None = None

    @property
    def num_bytes(self) -> int:
        """How long it is."""
        return self.end - self.begin

    @property
    def object_name(self) -> str:
        """The object that has it."""
        return self.name if self.number is None else f"{self.name}.{self.number:05d}"


def pieces_of(name: str, record: FileRecord) -> list[Piece]:
    """Return the pieces of a file, one for each of its checksums."""
    size, edge = record.num_bytes, manifest.PIECE_BYTES
    if size <= edge:
        return [Piece(name, 0, size)]
    return [
        Piece(name, at, min(at + edge, size), number)
        for number, at in enumerate(range(0, size, edge))
    ]


def read_pieces(
    folder: Path, files: Iterable[str], pieces: Sequence[Piece], read: Callable[[Piece], bytes]
) -> dict[str, int]:
    """Read pieces into files; return the sizes of files that are not as recorded, -1: lost.

    Args:
        folder: Where the files are to be.
        files: Those to make, with all their pieces or not.
        pieces: Those to read.
        read: Returns what there is of a piece, or raises FileNotFoundError.
    """

    def fetch(piece: Piece) -> int | None:
        try:
            data = read(piece)
        except FileNotFoundError:
            # What is left of a file without its first piece is of no use to anybody.
            return piece.begin or -1
        write_at(folder / piece.name, piece.begin, data)
        return None if len(data) == piece.num_bytes else piece.begin + len(data)

    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    with ThreadPoolExecutor(NUM_REQUESTS) as pool:
        sizes = list(pool.map(fetch, pieces))
    found = zip(pieces, sizes, strict=True)
    return smallest((piece.name, size) for piece, size in found if size is not None)


def smallest(sizes: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the smallest size that each name has."""
    found: dict[str, int] = {}
    for name, size in sizes:
        found[name] = min(size, found.get(name, size))
    return found


def cut_off(folder: Path, sizes: Mapping[str, int]) -> None:
    """Make files as short as those in the store are, for whoever verifies them; -1: remove."""
    for name, size in sizes.items():
        if size < 0:
            (folder / name).unlink()
        else:
            os.truncate(folder / name, size)


def write_at(path: Path, offset: int, data: Any) -> None:
    """Write a part of a file that is there."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def read_at(path: Path, offset: int, num_bytes: int) -> bytes:
    """Return a part of a file.

    Raises:
        OSError: It is shorter.
    """
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(num_bytes)
    if len(data) != num_bytes:
        raise OSError(f"{path} ends {num_bytes - len(data)} bytes too soon")
    return data
