"""`Heartbeat`: an observer that shows other processes that a run still makes steps.

heartbeat.json    step, time (UTC) and pid, of the newest report of a run
"""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

from axcore.trainer.callbacks.events import Event, RunStarted, StepsDone
from axcore.whole_files import write_whole

HEARTBEAT_NAME = "heartbeat.json"


class Heartbeat:
    """Writes `heartbeat.json` when a run starts and at each report of its steps.

    A supervisor restarts a run whose file is older than some reports take; it is never there in
    part.
    """

    def __init__(self) -> None:
        self._directory: Path | None = None

    def __call__(self, event: Event) -> None:
        """Writes the file where the event is one of those."""
        if isinstance(event, RunStarted):
            self._directory = Path(event.directory)
        if isinstance(event, RunStarted | StepsDone) and self._directory is not None:
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            beat = {"step": event.step, "time": now, "pid": os.getpid()}
            write_whole(self._directory / HEARTBEAT_NAME, f"{json.dumps(beat)}\n".encode())
