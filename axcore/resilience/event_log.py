"""`EventLog`: what happened in a run, one JSON object a line, from all its processes.

events.jsonl    {"time": UTC, "event": name, "process": index or "supervisor", ...} in each line

Every line is one write to the end of the file, so that processes never mix theirs.

`RunLog` is the log of a supervisor, whose trainers have yet to make the run directory.
"""

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs

from axcore.config.json_files import parse_json
from axcore.whole_files import read_regular

EVENTS_NAME = "events.jsonl"
SUPERVISOR = "supervisor"


_HANGS_NAME = "hangs"
_CLAIMED = "config.txt"
"""Trainers write it when the directory is theirs; before that they refuse one that holds files."""

Process = int | str
"""The index of a process of the run, or `SUPERVISOR`."""

_FIELDS: Mapping[str, type | tuple[type, ...]] = {"time": str, "event": str, "process": (int, str)}


@attrs.frozen
class EventLog:
    """The part of a run's log that one process appends to.

    Args:
        directory: The run directory, which exists.
        process: Who writes.
    """

    directory: Path
    process: Process

    def write(self, event: str, **values: Any) -> None:
        """Append one event; where the disk refuses it, it warns, and the run resumes."""
        # The time is taken here, by who saw the event, and
        # `values` may bring an earlier one (see `RunLog`).
        line = {"time": _utc_now(), "event": event, "process": self.process, **values}
        try:
            _append(self.directory / EVENTS_NAME, json.dumps(line).encode() + b"\n")
        # A lost line of a log is worth a warning, and no run of a thousand devices.
        except OSError as error:
            warnings.warn(f"the event {event!r} is not in {EVENTS_NAME}: {error}", stacklevel=2)


@attrs.frozen
class LoggedEvents:
    """What a log holds.

    Args:
        events: Full lines, the oldest first.
        damaged: What is wrong with each other line, with its number.
    """

    events: tuple[Mapping[str, Any], ...]
    damaged: tuple[str, ...] = ()


def read_events(directory: Path | str) -> LoggedEvents:
    """Return the events of a run; none where it has no log."""
    path = Path(directory) / EVENTS_NAME
    try:
        lines = read_regular(path).splitlines()
    except FileNotFoundError:
        return LoggedEvents(())
    except OSError as error:
        return LoggedEvents((), (f"{EVENTS_NAME} cannot be read: {error.strerror}",))
    events: list[Mapping[str, Any]] = []
    damaged: list[str] = []
    for number, line in enumerate(lines, start=1):
        problem = _problem(line)
        # Line by line: one that is cut must not hide what happened before and after it.
        if problem is None:
            events.append(parse_json(line))
        elif line:  # a line cut short by a kill is followed by a new one
            damaged.append(f"line {number} of {EVENTS_NAME} is damaged: {problem}")
    return LoggedEvents(tuple(events), tuple(damaged))


class RunLog:
    """The log of a process that writes before the run directory is claimed.

    Until then it keeps the events: the trainers make the directory, and check what is in it.
    """

    def __init__(self, directory: Path, process: Process) -> None:
        self._directory = directory
        self._log = EventLog(directory, process)
        self._kept: list[tuple[str, dict[str, Any]]] = []

    def write(self, event: str, **values: Any) -> None:
        """Write an event, now or when the directory is there, with the time of now."""
        self._kept.append((event, {"time": _utc_now(), **values}))
        self.flush()

    # Kept events have their own time, so it does not matter when the directory appears.
    def flush(self) -> None:
        """Write what is kept, if the directory is there."""
        if self._kept and self._is_claimed():
            for event, values in self._kept:
                self._log.write(event, **values)
            self._kept.clear()

    def keep_stacks(self, stacks: Sequence[str]) -> str | None:
        """Write a file for each process, and return their folder; None where there is no run."""
        if not self._is_claimed():
            return None
        # With microseconds: two hangs of one second must not share a folder.
        folder = self._directory / _HANGS_NAME / f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
        folder.mkdir(parents=True)
        for index, text in enumerate(stacks):
            text = text or "the process did not answer\n"
            (folder / f"process_{index}.txt").write_text(text, encoding="utf-8")
        return str(folder.relative_to(self._directory))

    def _is_claimed(self) -> bool:
        return (self._directory / _CLAIMED).exists()


def _utc_now() -> str:
    """Return the time as events show it: ISO, UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _append(path: Path, line: bytes) -> None:
    # One `write` of a full line to a file opened for appending: processes write into one log.
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        # Of a writer that was killed inside `write`, on a file system that
        # does not write a line at once. Its rest must not swallow this line.
        size = os.fstat(descriptor).st_size
        is_cut = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        # One call: O_APPEND makes a single write atomic among processes on
        # a local disk. Two could be torn apart by another process's line.
        os.write(descriptor, b"\n" + line if is_cut else line)
    finally:
        os.close(descriptor)


def _problem(line: bytes) -> str | None:
    try:
        found = parse_json(line)
    except ValueError as error:
        return str(error)
    if not isinstance(found, dict):
        return f"expected an object, got {type(found).__name__}"
    wrong = [name for name, kind in _FIELDS.items() if not isinstance(found.get(name), kind)]
    return f"no {' and no '.join(wrong)}" if wrong else None
