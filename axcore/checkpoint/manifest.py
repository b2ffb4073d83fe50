"""The manifest: the last file written into a checkpoint, and the first one read.

It holds what the checkpoint is made of: leaves, files with their checksums, the caller's extras.
It guards itself: the file must be, byte for byte, what its content renders to, checksum included.
"""

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attrs

from axcore.checkpoint.integrity import FileRecord
from axcore.checkpoint.leaves import LeafSpec
from axcore.config.json_files import parse_json
from axcore.errors import CheckpointError
from axcore.whole_files import read_regular, write_whole

MANIFEST_NAME = "manifest.json"
FORMAT = "axcore-checkpoint"
FORMAT_VERSION = 1


class DamagedCheckpointError(CheckpointError):
    """What is on the disk differs from what was saved."""


@attrs.frozen(kw_only=True)
class Manifest:
    """What a committed checkpoint is made of."""

    step: int
    leaves: Mapping[str, LeafSpec]
    files: Mapping[str, FileRecord]
    extra: Mapping[str, Any]
    axcore_version: str = attrs.field(factory=lambda: version("axcore"))


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Writes a manifest atomically and durably."""
    write_whole(directory / MANIFEST_NAME, _render(to_json(manifest)))


def read_manifest(directory: Path) -> Manifest:
    """Reads a manifest.

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
    if body["format_version"] != FORMAT_VERSION:
        raise CheckpointError(
            f"the checkpoint has format {body['format_version']}, written by axcore "
            f"{body['axcore_version']}; this axcore reads format {FORMAT_VERSION}",
            where=str(path),
            hint=f"install axcore {body['axcore_version']} or newer",
        )
    return from_json(body)


def check_extra(extra: Mapping[str, Any]) -> None:
    """Checks that values come back from JSON exactly as they are.

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
    if value is None or type(value) in (bool, int, str):
        return None
    if type(value) is float:
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
    digest = hashlib.sha256(json.dumps(body).encode()).hexdigest()
    return (json.dumps({**body, "checksum": digest}, indent=1) + "\n").encode()


def _verified(text: bytes, path: Path) -> dict[str, Any]:
    """Returns the manifest's values without the checksum, if rendering them gives `text` back."""
    try:
        body = parse_json(text)
        del body["checksum"]
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
    """Returns a manifest as values that JSON gives back."""
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "axcore_version": manifest.axcore_version,
        "step": manifest.step,
        "extra": dict(manifest.extra),
        "leaves": {name: [s.dtype, list(s.shape)] for name, s in manifest.leaves.items()},
        "files": {name: [r.num_bytes, list(r.crc32)] for name, r in manifest.files.items()},
    }


def from_json(body: Mapping[str, Any]) -> Manifest:
    """Returns the manifest that `to_json` made the values of."""
    return Manifest(
        step=body["step"],
        leaves={name: LeafSpec(tuple(s), dtype) for name, (dtype, s) in body["leaves"].items()},
        files={name: FileRecord(n, tuple(crcs)) for name, (n, crcs) in body["files"].items()},
        extra=body["extra"],
        axcore_version=body["axcore_version"],
    )
