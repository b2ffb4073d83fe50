"""Observers that a config names: found by name, made when the run has something to report.

`Heartbeat` is one of them.
"""

import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from axcore.errors import TrainingError
from axcore.plugins import RunObserver, plugin_host
from axcore.plugins.time_limit import CallThread, TakesTooLongError, callback_timeout_s, longer
from axcore.trainer.callbacks.events import Event, Observer, RunStarted, StepsDone
from axcore.whole_files import write_whole


class NamedObserver:
    """An observer that a plugin brings, made at the first event; one that cannot be made raises.

    It works in a thread of its own, while the run waits for it up to a time limit.
    """

    def __init__(self, record: RunObserver) -> None:
        self._record = record
        self._observer: Observer | None = None
        self._limit_s = callback_timeout_s()
        self._thread = CallThread(record.fn.target.partition(".")[0])

    @property
    def sees_phases(self) -> bool:
        """Whether the observer gets `PhaseStarted`; not before it is made."""
        return bool(getattr(self._observer, "sees_phases", False))

    def __call__(self, event: Event) -> None:
        """Hand the event on.

        Raises:
            TrainingError: The observer has not ended in time, or wants to end the process.
        """
        try:
            self._thread.within(self._limit_s, lambda: self._observe(event))
        except TakesTooLongError as place:
            raise TrainingError(
                f"it has not finished after {self._limit_s:g} s; it is at {place}",
                where=repr(self),
                hint=f"take it out of `observers`, or {longer(self._limit_s)}",
            ) from None
        except SystemExit as error:  # which would end the run without a word
            raise TrainingError(
                f"it wants to end the process: SystemExit({error.code!r})",
                where=repr(self),
                hint="take it out of `observers`; a guard can end a run",
            ) from error

    def _observe(self, event: Event) -> None:
        if self._observer is None:
            observer = self._record.call("fn", returns=object)
            if not callable(observer):
                raise self._record.wrong_return("fn", observer, "a function of an event")
            self._observer = observer
        self._observer(event)

    def __repr__(self) -> str:
        return f"{self._record.name!r} of plugin {self._record.plugin!r}"


def named_observers(names: Iterable[str]) -> tuple[Observer, ...]:
    """Return the observers of those names, for one run."""
    known = {record.name: record for record in plugin_host().records(RunObserver)}
    return tuple(NamedObserver(known[name]) for name in names)


HEARTBEAT_NAME = "heartbeat.json"


class Heartbeat:
    """Writes `heartbeat.json` when a run starts and at each report of its steps.

    A supervisor restarts a run whose file is older than some reports take; it is never there in
    part.
    """

    def __init__(self) -> None:
        self._directory: Path | None = None

    def __call__(self, event: Event) -> None:
        """Write the file where the event is one of those."""
        if isinstance(event, RunStarted):
            self._directory = Path(event.directory)
        if isinstance(event, RunStarted | StepsDone) and self._directory is not None:
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            beat = {"step": event.step, "time": now, "pid": os.getpid()}
            write_whole(self._directory / HEARTBEAT_NAME, f"{json.dumps(beat)}\n".encode())
