"""Checksums of a step's files, taken by all processes of a run: each reads a part of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from axcore.checkpoint.faults import as_storage_errors
from axcore.checkpoint.integrity import FileRecord, find_damage, list_files, record_files
from axcore.distributed import all_gather_object, broadcast_object, shard_for_process


def record_together(root: Path) -> dict[str, FileRecord]:
    """Returns the records of the files under `root`."""

    def listed() -> dict[str, int]:
        with as_storage_errors(OSError):
            return list_files(root)

    def measured() -> dict[str, Any]:
        with as_storage_errors(OSError):
            records = record_files(root, dict(shard_for_process(list(sizes.items()))))
        return {name: [record.num_bytes, *record.crc32] for name, record in records.items()}

    sizes = broadcast_object("listing a checkpoint", listed)
    parts = all_gather_object("measuring a checkpoint", measured)
    found = {name: values for part in parts for name, values in part.items()}
    return {name: FileRecord(found[name][0], tuple(found[name][1:])) for name in sizes}


def find_damage_together(name: str, root: Path, records: Mapping[str, FileRecord]) -> list[str]:
    """Returns one sentence for each recorded file that is missing, changed or unreadable.

    Args:
        name: What this is for, not used by two threads at once.
        root: The directory of the files.
        records: What they held when they were saved.
    """
    own = dict(shard_for_process(list(records.items())))
    parts = all_gather_object(name, lambda: _problems(root, own))
    return [problem for part in parts for problem in part]


def _problems(root: Path, records: Mapping[str, FileRecord]) -> list[str]:
    try:
        return find_damage(root, records)
    except OSError as error:
        return [f"a file cannot be read: {error}"]
