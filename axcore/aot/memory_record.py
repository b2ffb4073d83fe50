"""`StepMemoryRecorder`: keeps with a run what its compiled step needs of a device's memory.

RUN/memory.json   of the newest start: the parts, and the largest buffers with what makes them
"""

import json
from pathlib import Path
from typing import Any

import attrs

from axcore.aot.out_of_memory import step_memory
from axcore.trainer.callbacks import Event, RunStarted, StepsDone
from axcore.whole_files import write_whole

MEMORY_NAME = "memory.json"


class StepMemoryRecorder:
    """An observer that reads the compiled step once, after the first line of metrics.

    Args:
        trainer: Whose step it is.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._directory: Path | None = None

    def __call__(self, event: Event) -> None:
        """Writes the file where the first steps are done."""
        match event:
            case RunStarted():
                self._directory = Path(event.directory)
            case StepsDone() if self._directory is not None:
                path, self._directory = self._directory / MEMORY_NAME, None
                memory = attrs.asdict(step_memory(self._trainer))
                write_whole(path, (json.dumps(memory) + "\n").encode())
            case _:
                pass
