"""Checksums of files: taken after a save, compared before a restore.

A checksum is a CRC-32 of every 64 MiB piece. It finds every flipped bit and every burst of up to
32 bits for certain, any other change with a chance of 1 - 2**-32. Pieces are read in parallel.
"""

import os
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs

from axcore.whole_files import check_is_regular

PIECE_BYTES = 64 << 20
_READ_BYTES = 1 << 20


@attrs.frozen
class FileRecord:
    """What a file held when it was saved: its size, and the CRC-32 of each piece in hexadecimal."""

    num_bytes: int
    crc32: tuple[str, ...]


def list_files(root: Path) -> dict[str, int]:
    """Returns the size of every file under `root`, by its path relative to `root`."""
    return {
        path.relative_to(root).as_posix(): path.stat().st_size
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def record_files(root: Path, sizes: Mapping[str, int]) -> dict[str, FileRecord]:
    """Returns the records of files of `root` with those sizes."""
    return _records(root, sizes)


def find_damage(root: Path, records: Mapping[str, FileRecord]) -> list[str]:
    """Returns one sentence for each recorded file that is missing or changed; empty if all is well.

    Raises:
        OSError: A file is there and cannot be read.
    """
    problems, whole = [], {}
    for name, record in records.items():
        path = root / name
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif (size := path.stat().st_size) != record.num_bytes:
            problems.append(f"{name} has {size} bytes; it was saved with {record.num_bytes}")
        else:
            whole[name] = record.num_bytes
    for name, found in _records(root, whole).items():
        changed = [
            i
            for i, (a, b) in enumerate(zip(found.crc32, records[name].crc32, strict=True))
            if a != b
        ]
        if changed:
            where = f" near byte {changed[0] * PIECE_BYTES}" if len(found.crc32) > 1 else ""
            problems.append(f"{name} has changed since it was saved (its checksum differs{where})")
    return problems


def _records(root: Path, sizes: Mapping[str, int]) -> dict[str, FileRecord]:
    pieces = [
        (name, start)
        for name, size in sizes.items()
        for start in range(0, max(size, 1), PIECE_BYTES)
    ]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        sums = list(pool.map(lambda piece: _piece_crc32(root / piece[0], piece[1]), pieces))
    by_name: dict[str, list[str]] = {name: [] for name in sizes}
    for (name, _), value in zip(pieces, sums, strict=True):
        by_name[name].append(value)
    return {name: FileRecord(size, tuple(by_name[name])) for name, size in sizes.items()}


def _piece_crc32(path: Path, start: int) -> str:
    crc, offset, end = 0, start, start + PIECE_BYTES
    check_is_regular(path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        while offset < end and (
            data := os.pread(descriptor, min(_READ_BYTES, end - offset), offset)
        ):
            crc = zlib.crc32(data, crc)
            offset += len(data)
    finally:
        os.close(descriptor)
    return f"{crc:08x}"
