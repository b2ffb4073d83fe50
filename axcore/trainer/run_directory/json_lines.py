"""JSON lines that a run keeps: appended whole, and read past lines that are damaged."""

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from axcore.config.json_files import parse_json
from axcore.errors import CheckpointError
from axcore.whole_files import open_regular, read_regular


def append_json_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append a line durably, in one write: a killed process leaves it whole, cut or absent."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, (_line_break(path) + json.dumps(value) + "\n").encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects in a file, oldest first; none where there is no such file.

    A line that contains none is named in a warning and passed over.

    Raises:
        CheckpointError: The file cannot be read.
    """
    try:
        lines = read_regular(path).splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        what = f"{path.name} cannot be read: {error.strerror}"
        raise CheckpointError(what, where=str(path)) from error
    values = [_parsed(line) for line in lines]
    damaged = [str(number) for number, value in enumerate(values, 1) if value is None]
    if damaged:
        warnings.warn(
            f"{path} is damaged at line {', '.join(damaged[:8])}"
            f"{', ...' if len(damaged) > 8 else ''}: no JSON object; the other "
            f"{len(values) - len(damaged)} lines are used",
            stacklevel=2,
        )
    return [value for value in values if value is not None]


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        value = parse_json(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _line_break(path: Path) -> str:
    """Return what ends a line that a killed process left without its end."""
    with open_regular(path) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        return "" if file.read() in (b"", b"\n") else "\n"
