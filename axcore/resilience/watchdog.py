"""Observers of a run that watch its progress: `Watchdog` and `ProgressReports`.

A run that nobody supervises keeps its stacks and warns when it makes no progress:

stacks.txt    in the run directory: what each thread did when the run hung

A timer of faulthandler writes them, which works while a thread holds the GIL, too. The warning is
from a thread of Python, so it comes when the GIL is free.
"""

import faulthandler
import sys
import threading
import time
from pathlib import Path
from typing import IO

from axcore.resilience.heartbeat import Heartbeat
from axcore.resilience.policy import Policy
from axcore.trainer import Event, PhaseStarted, RolledBack, RunFinished, RunStarted, StepsDone

_STACKS_NAME = "stacks.txt"
# A step of a millisecond would start a timer's thread a thousand times a second.
# A limit may so run out this much later, which is nothing against minutes.
_REARM_S = 1.0


class Watchdog:
    """An observer of a run; what comes too late after one event is a hang of what it began."""

    sees_phases = True

    def __init__(self, policy: Policy | None = None) -> None:
        self._policy = policy or Policy()
        self._file: IO[str] | None = None
        self._phase, self._step = "start", 0
        self._since = self._armed_at = time.monotonic()
        self._limit_s = 0.0
        self._step_s: float | None = None
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        """Set the timer again for what begins; the end of the run ends the watch."""
        if isinstance(event, RunStarted):
            self._open(Path(event.directory))
        elif isinstance(event, RunFinished):
            self._close()
            return
        elif isinstance(event, StepsDone):
            self._step, self._step_s = event.step, event.metrics["step_time_s"]
        elif isinstance(event, PhaseStarted):
            self._phase = event.label
        self._rearm()

    def _open(self, directory: Path) -> None:
        self._file = (directory / _STACKS_NAME).open("a", encoding="utf-8")
        threading.Thread(target=self._warn, name="watchdog", daemon=True).start()

    # Only prints: if this thread never gets the GIL, faulthandler's
    # own thread, which needs none, writes the stacks all the same.
    def _close(self) -> None:
        # Before the file is closed: a timer that fires into a closed
        # descriptor would write into whatever file has its number then.
        faulthandler.cancel_dump_traceback_later()
        with self._changed:
            file, self._file = self._file, None
            self._changed.notify()
        # Closed outside of the lock, for `_warn` takes it at every turn.
        if file is not None:
            file.close()
            path = Path(file.name)
            if path.exists() and not path.stat().st_size:
                # An empty file in a run directory looks like a hang that left no traces.
                path.unlink()

    def _rearm(self) -> None:
        now, limit_s = time.monotonic(), self._policy.limit_s(self._phase, self._step_s)
        # `_since` at each event, though the timer is not:
        # the warning counts from the last sign of life.
        self._since = now
        is_armed = limit_s == self._limit_s and now - self._armed_at < min(_REARM_S, limit_s / 4)
        if self._file is None or is_armed:
            return  # a timer costs a thread, and steps may be short
        self._armed_at, self._limit_s = now, limit_s
        # It replaces the timer before it. Unlike a thread of Python
        # it fires while the GIL is held by a library that hangs.
        faulthandler.dump_traceback_later(limit_s, file=self._file)
        with self._changed:
            self._changed.notify()

    def _warn(self) -> None:
        """Print one line for each hang, once its stacks are written."""
        warned_of = 0.0
        while self._file is not None:
            with self._changed:
                # A quarter, so that short limits in tests and long ones alike are
                # noticed soon after; `_changed` wakes it when the limit shrinks.
                self._changed.wait(timeout=max(_REARM_S / 4, self._limit_s / 4))
            silent_s = time.monotonic() - self._since
            if self._file is None or silent_s < self._limit_s or warned_of == self._since:
                continue
            warned_of = self._since
            print(
                f"warning: no progress for {silent_s:.1f} s after step {self._step} "
                f"({self._phase}); stacks of all threads: {self._file.name}",
                file=sys.stderr,
                flush=True,
            )


class ProgressReports:
    """An observer that keeps a heartbeat's step and phase up to date."""

    sees_phases = True

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        self._step = -1

    def __call__(self, event: Event) -> None:
        """Report what the event begins."""
        if isinstance(event, PhaseStarted):
            # The batch is for the step after the one reported last;
            # before the first report there is no number to raise.
            self._step += event.label == "data_wait" and self._step >= 0  # the next step's batch
            self._heartbeat.report(step=self._step, phase=event.label)
        elif isinstance(event, RunStarted | StepsDone | RolledBack):
            self._step = event.step
            self._heartbeat.report(step=self._step)
