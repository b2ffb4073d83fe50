"""The manifest: the last file written into a checkpoint, and the first one read.

It contains what the checkpoint is made of: leaves, files with their checksums, the caller's extras.
It guards itself: the file must be, byte for byte, what its content renders to, checksum included.
"""

import hashlib
import itertools
import json
import os
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attrs

from axcore.checkpoint.chunks import ChunkGrid
from axcore.checkpoint.leaves import LeafSpec
from axcore.config.json_files import parse_json
from axcore.distributed import decide_together
from axcore.errors import CheckpointError
from axcore.whole_files import check_is_regular, read_regular, write_whole

MANIFEST_NAME = "manifest.json"

FORMAT = "axcore-checkpoint"

FORMAT_VERSION = 2
"""What is written; version 1 is read, too, where Orbax wrote one database for all processes."""

_DATABASE_OF_VERSION_1 = "arrays/state"


# A multiple of every file system's block, so each piece is a whole number
# of pages; small enough that eight threads have work in one large file.
# Part of the format: another size makes all manifests of today damaged.
PIECE_BYTES = 64 << 20

# `zlib.crc32` lets other threads run for buffers of this size,
# and it is what a read from a disk needs to be at full speed.
_READ_BYTES = 1 << 20


class DamagedCheckpointError(CheckpointError):
    """What is on the disk differs from what was saved."""


@attrs.frozen
class FileRecord:
    """What a file held when it was saved: its size, and the CRC-32 of each piece in hexadecimal."""

    num_bytes: int
    crc32: tuple[str, ...]


@attrs.frozen(kw_only=True)
class Manifest:
    """What a committed checkpoint is made of.

    Attributes:
        step: Its number.
        leaves: Shapes and dtypes by name.
        files: What was measured, by path in the step's directory.
        extra: The caller's values.
        databases: The directories of arrays in the step's directory, by number.
        grids: Of each leaf, which database has which chunk; a leaf that is not named is one chunk
            of the first database.
        axcore_version: Who wrote it.
    """

    step: int
    leaves: Mapping[str, LeafSpec]
    files: Mapping[str, FileRecord]
    extra: Mapping[str, Any]
    databases: tuple[str, ...]
    grids: Mapping[str, ChunkGrid]
    axcore_version: str = attrs.field(factory=lambda: version("axcore"))


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write a manifest atomically and durably."""
    write_whole(directory / MANIFEST_NAME, _render(to_json(manifest)))


def read_manifest(directory: Path) -> Manifest:
    """Read a manifest.

    Raises:
        DamagedCheckpointError: It is missing, unreadable, or not what was written.
        CheckpointError: A newer axcore wrote it.
    """
    path = directory / MANIFEST_NAME
    try:
        text = read_regular(path)
    except FileNotFoundError:
        raise DamagedCheckpointError(f"{MANIFEST_NAME} is missing", where=str(path)) from None
    except OSError as error:
        raise DamagedCheckpointError(f"{MANIFEST_NAME}: {error}", where=str(path)) from error
    body = _verified(text, path)
    if body["format_version"] not in range(1, FORMAT_VERSION + 1):
        raise CheckpointError(
            f"the checkpoint has format {body['format_version']}, written by axcore "
            f"{body['axcore_version']}; this axcore reads formats 1 to {FORMAT_VERSION}",
            where=str(path),
            hint=f"install axcore {body['axcore_version']} or newer",
        )
    return from_json(body)


def check_extra(extra: Mapping[str, Any]) -> None:
    """Check that values come back from JSON exactly as they are.

    Raises:
        CheckpointError: Naming the first value that would not.
    """
    problem = _json_problem(dict(extra), "extra")
    if problem:
        raise CheckpointError(
            problem,
            where="extra",
            hint="use only dicts with str keys, lists, str, int, finite float, bool and None",
        )


def _json_problem(value: Any, path: str) -> str | None:
    # `type(...) is`, not `isinstance`: a subclass (an IntEnum, a
    # numpy float64, an OrderedDict) would come back as its base.
    if value is None or type(value) in (bool, int, str):
        return None
    if type(value) is float:
        # False for nan and for both infinities, without importing math
        # for it. `json` would write the word NaN, which is not JSON.
        finite = value - value == 0
        return None if finite else f"{path} is {value}; JSON has no such number"
    if type(value) is list:
        inner = ((item, f"{path}[{i}]") for i, item in enumerate(value))
    elif type(value) is dict:
        for key in value:
            if type(key) is not str:
                return f"{path} has the key {key!r}; JSON would make it a str"
        inner = ((item, f"{path}.{key}") for key, item in value.items())
    else:
        return f"{path} is {value!r} ({type(value).__qualname__}); JSON would not give it back"
    return next((found for item, where in inner if (found := _json_problem(item, where))), None)


def _render(body: Mapping[str, Any]) -> bytes:
    # Over compact JSON, not over the file's text: the digest does not depend on how
    # the file is indented, and key order is the order of insertion on both sides.
    digest = hashlib.sha256(json.dumps(body).encode()).hexdigest()
    return (json.dumps({**body, "checksum": digest}, indent=1) + "\n").encode()


def _verified(text: bytes, path: Path) -> dict[str, Any]:
    """Return the manifest's values without the checksum, if rendering them gives `text` back."""
    try:
        body = parse_json(text)
        del body["checksum"]
        # Byte for byte: JSON that means the same but reads otherwise was changed by somebody.
        intact = body["format"] == FORMAT and _render(body) == text
    except (ValueError, KeyError, TypeError):
        intact = False
    if not intact:
        raise DamagedCheckpointError(
            f"{MANIFEST_NAME} has changed since it was saved (its checksum differs)",
            where=str(path),
        )
    return dict(body)


def to_json(manifest: Manifest) -> dict[str, Any]:
    """Return a manifest as values that JSON gives back."""
    # Most leaves are cut alike, so who owns their chunks is written
    # once: it is a number for every device of the run.
    owners = list(dict.fromkeys(grid.owners for grid in manifest.grids.values()))
    numbers = {one: number for number, one in enumerate(owners)}
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "axcore_version": manifest.axcore_version,
        "step": manifest.step,
        "extra": dict(manifest.extra),
        "leaves": {name: [s.dtype, list(s.shape)] for name, s in manifest.leaves.items()},
        "databases": list(manifest.databases),
        "chunks": {
            name: [list(grid.chunk_shape), numbers[grid.owners]]
            for name, grid in manifest.grids.items()
        },
        "owners": [list(one) for one in owners],
        "files": records_to_json(manifest.files),
    }


def from_json(body: Mapping[str, Any]) -> Manifest:
    """Return the manifest that `to_json` made the values of, in this version or an older one."""
    owners = [tuple(one) for one in body.get("owners", [])]
    return Manifest(
        step=body["step"],
        leaves={name: LeafSpec(tuple(s), dtype) for name, (dtype, s) in body["leaves"].items()},
        files=records_from_json(body["files"]),
        extra=body["extra"],
        databases=tuple(body.get("databases", [_DATABASE_OF_VERSION_1])),
        grids={
            name: ChunkGrid(tuple(shape), owners[number])
            for name, (shape, number) in body.get("chunks", {}).items()
        },
        axcore_version=body["axcore_version"],
    )


def records_to_json(files: Mapping[str, FileRecord]) -> dict[str, Any]:
    """Return records as values that JSON gives back."""
    return {name: [one.num_bytes, list(one.crc32)] for name, one in files.items()}


def records_from_json(body: Mapping[str, Any]) -> dict[str, FileRecord]:
    """Return the records that `records_to_json` made the values of."""
    return {name: FileRecord(size, tuple(crcs)) for name, (size, crcs) in body.items()}


# -- Checksums of files ----------------------------------------------------------------------------
#
# A checksum is a CRC-32 of every 64 MiB piece. It finds every flipped bit and every burst of up to
# 32 bits for certain, any other change with a chance of 1 - 2**-32. Pieces are read in parallel.


def record_files(root: Path, folder: str = ".") -> dict[str, FileRecord]:
    """Return the records of the files in a folder of `root`, by their paths relative to `root`."""
    sizes = {
        path.relative_to(root).as_posix(): path.stat().st_size
        for path in sorted((root / folder).rglob("*"))
        if path.is_file()
    }
    return _records(root, sizes)


def record_file(root: Path, name: str) -> FileRecord:
    """Return the record of one file."""
    return _records(root, {name: (root / name).stat().st_size})[name]


def find_damage(root: Path, records: Mapping[str, FileRecord]) -> list[str]:
    """Return one sentence for each recorded file that is missing or changed; empty if all is well.

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
        # Size first: it is free, and says that a file was cut off rather than changed.
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
        # An empty file has one piece of no bytes, so that it has a record and its loss is noticed.
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
    # A named pipe put in the place of a file would block `open` for ever.
    check_is_regular(path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        while offset < end and (
            # `pread`, not seek and read: it has no shared position,
            # so a descriptor can serve any number of threads.
            data := os.pread(descriptor, min(_READ_BYTES, end - offset), offset)
        ):
            crc = zlib.crc32(data, crc)
            offset += len(data)
    finally:
        os.close(descriptor)
    return f"{crc:08x}"


def find_damage_together(name: str, root: Path, own: Mapping[str, FileRecord]) -> list[str]:
    """Return one sentence for each recorded file that is missing, changed or unreadable.

    Args:
        name: What this is for, not used by two threads at once.
        root: The directory of the files.
        own: What the files that this process reads held when they were saved.
    """
    of_all = itertools.chain.from_iterable
    return decide_together(name, lambda: _problems(root, own), lambda parts: list(of_all(parts)))


def _problems(root: Path, records: Mapping[str, FileRecord]) -> list[str]:
    try:
        return find_damage(root, records)
    # A sentence, not an error: one host's broken mount
    # must not end the search for an older step in all.
    except OSError as error:
        return [f"a file cannot be read: {error}"]
