"""`Goodput`: an observer that keeps a run's ledger, over all starts of its job."""

import time
import warnings
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from axcore.resilience.event_log import read_events
from axcore.resilience.ledger import GOODPUT_NAME, Label, Ledger, read_ledger, write_ledger
from axcore.trainer import Event, PhaseStarted, RolledBack, RunFinished, RunStarted, StepsDone

# What a kill can lose of the ledger; a small file a second costs little.
_WRITE_EVERY_S = 1.0

_DEATHS: dict[str, Label] = {"hang": "hang", "process_lost": "lost_work"}
"""What old processes did until the event that a supervisor logged of their end."""


class Goodput:
    """The writer of `goodput.json`: at each report, at the end, and about every second in between.

    What a killed run did after its last write is idle time, unless a supervisor's event says more.
    Seconds of steps that a run repeats after a restart or a rollback are lost work; what else it
    did between them keeps its label.
    """

    sees_phases = True

    def __init__(
        self, started: float | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        """Begin the ledger.

        Args:
            started: When the job's time begins, since the epoch; by default now.
            clock: Returns the time.
        """
        self._clock = clock
        self._directory: Path | None = None
        self._written = 0.0
        self.ledger = Ledger(clock() if started is None else started)

    def __call__(self, event: Event) -> None:
        """Spend the time until now on its label, and write the file where it is due."""
        now = self._clock()
        # The event is counted before it is written, so
        # that the file contains the step that it reports.
        self._take(event, now)
        is_report = isinstance(event, RunStarted | StepsDone | RunFinished)
        if self._directory and (is_report or now - self._written >= _WRITE_EVERY_S):
            self._write(self._directory)
            self._written = now

    def _write(self, directory: Path) -> None:
        try:
            write_ledger(directory, self.ledger)
        except OSError as error:
            # A full disk ends no run here; checkpoints have errors of their own.
            warnings.warn(f"{GOODPUT_NAME} was not written: {error}", stacklevel=2)

    def _take(self, event: Event, now: float) -> None:
        match event:
            case PhaseStarted(label=label):
                self.ledger.mark(now, label)
            case RunStarted():
                self.ledger.mark(now, self.ledger.label)
                self._open(Path(event.directory), event.step)
            case StepsDone(step=step):
                self.ledger.reach(now, step)
            case RolledBack(step=step):
                self.ledger.mark(now, self.ledger.label)
                self.ledger.go_back(step)
            case RunFinished():
                # What follows the end is not the run's:
                # writing results, leaving the other processes.
                self.ledger.mark(now, "idle")

    def _open(self, directory: Path, step: int) -> None:
        older = read_ledger(directory)
        if older is not None:
            older.append(self.ledger, _death(directory, older.time))
            self.ledger = older
        # From a checkpoint older than the ledger's newest step the steps between are made again.
        self.ledger.go_back(step)
        self._directory = directory


def _death(directory: Path, since: float) -> tuple[float, Label] | None:
    """Return when the processes before these ended and what they had been doing, if known."""
    # Newest first: what matters is the end of the processes right before this one.
    for event in reversed(read_events(directory).events):
        when = datetime.fromisoformat(event["time"]).timestamp()
        # Events before the ledger's last mark are of earlier starts, whose ends it has already.
        if when <= since:
            return None
        if event["event"] in _DEATHS:
            return when, _DEATHS[event["event"]]
    return None
