"""The metrics of a run, as arrays."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from axcore.config.json_files import parse_json
from axcore.errors import CheckpointError
from axcore.whole_files import read_regular

Metrics = Mapping[str, Mapping[str, NDArray[Any]]]
"""Arrays by split and name: `metrics["train"]["loss"]` has a value for each line of the split."""


def read_metrics(path: Path) -> Metrics:
    """Returns the metrics in a `metrics.jsonl`; empty where there is no such file.

    A value that some lines of a split lack is nan there. A last line without its end is passed
    over: it is being written, or was when its process was killed, and then it is written again.

    Raises:
        CheckpointError: A line is damaged.
    """
    splits: dict[str, list[dict[str, Any]]] = {}
    text = read_regular(path).decode("utf-8") if path.exists() else ""
    lines = text.splitlines(keepends=True)
    if lines and not (lines[-1].endswith("\n") or _is_whole(lines[-1])):
        lines.pop()
    for number, line in enumerate(lines, 1):
        values = _parsed(line, f"{path}:{number}")
        splits.setdefault(values.pop("split"), []).append(values)
    return {split: _arrays(lines) for split, lines in splits.items()}


def _is_whole(line: str) -> bool:
    try:
        parse_json(line)
    except ValueError:
        return False
    return True


def _parsed(line: str, where: str) -> dict[str, Any]:
    try:
        values: dict[str, Any] = parse_json(line)
        return {**values, "step": int(values["step"]), "split": str(values["split"])}
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"the line is no metrics: {type(error).__name__}: {error}",
            where=where,
            hint="take the line out; a run that resumes drops what follows its checkpoint",
        ) from error


def _arrays(lines: list[dict[str, Any]]) -> dict[str, NDArray[Any]]:
    names = {name: None for line in lines for name in line}
    columns = {name: [_number(line.get(name, "nan")) for line in lines] for name in names}
    return {
        name: np.array(column, np.int64 if name == "step" else np.float64)
        for name, column in columns.items()
    }


def _number(value: Any) -> float:
    """Returns a value as it was written; JSON has no nan and no infinity, so they are text."""
    return float(value) if isinstance(value, (int, float, str)) else float("nan")
