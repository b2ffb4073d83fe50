"""Steps that a worker made, as lines of JSON; workers under any Python use it."""

import json
import os
import time
from pathlib import Path
from typing import Any


class StepLog:
    """Appends to one file a process, which outlives it."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = (folder / f"steps_{rank}.jsonl").open("a", encoding="utf-8", buffering=1)

    def write(self, **values: Any) -> None:
        """Add a line with the time and this process's id."""
        line = {"time": time.time(), "pid": os.getpid(), **values}
        self._file.write(json.dumps(line) + "\n")


def read_steps(folder: Path, rank: int) -> list[dict[str, Any]]:
    """Return the full lines of a process and of those that took its place."""
    path = folder / f"steps_{rank}.jsonl"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]
