"""`RunLog`: an event log of a run directory that its trainers have yet to make."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from axcore.resilience.event_log import EventLog, Process, utc_now

HANGS_NAME = "hangs"
_CLAIMED = "config.txt"
"""Trainers write it when the directory is theirs; before that they refuse one that holds files."""


class RunLog:
    """Keeps events until the run directory is claimed, and writes them to its log then."""

    def __init__(self, directory: Path, process: Process) -> None:
        self._directory = directory
        self._log = EventLog(directory, process)
        self._kept: list[tuple[str, dict[str, Any]]] = []

    def write(self, event: str, **values: Any) -> None:
        """Writes an event, now or when the directory is there, with the time of now."""
        self._kept.append((event, {"time": utc_now(), **values}))
        self.flush()

    def flush(self) -> None:
        """Writes what is kept, if the directory is there."""
        if self._kept and self._is_claimed():
            for event, values in self._kept:
                self._log.write(event, **values)
            self._kept.clear()

    def keep_stacks(self, stacks: Sequence[str]) -> str | None:
        """Writes a file for each process, and returns their folder; None where there is no run."""
        if not self._is_claimed():
            return None
        folder = self._directory / HANGS_NAME / f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
        folder.mkdir(parents=True)
        for index, text in enumerate(stacks):
            text = text or "the process did not answer\n"
            (folder / f"process_{index}.txt").write_text(text, encoding="utf-8")
        return str(folder.relative_to(self._directory))

    def _is_claimed(self) -> bool:
        return (self._directory / _CLAIMED).exists()
