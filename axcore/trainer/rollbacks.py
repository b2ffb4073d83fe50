"""`Rollbacks`: the times that a run went back, kept in its directory, and held to a budget.

rollbacks.jsonl    one JSON object a line for each: time, from_step, step, reason, data

`data` is the position in the data with which the older step continued, null where it took the same
batches again. A run that resumes at that step goes there, too.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from axcore.distributed import broadcast_object, is_process_zero
from axcore.errors import TrainingError
from axcore.trainer.guards import RollBack
from axcore.trainer.run_directory.json_lines import append_json_line, read_json_lines

ROLLBACKS_NAME = "rollbacks.jsonl"


class Rollbacks:
    """The rollbacks of one run, over all its starts."""

    def __init__(self, directory: Path, *, budget: int, window_steps: int) -> None:
        self._path = directory / ROLLBACKS_NAME
        self._budget = budget
        self._window_steps = window_steps
        self._done = broadcast_object("reading rollbacks", lambda: read_json_lines(self._path))

    def check_budget(
        self, wish: RollBack, *, step: int, good: int | None, suspects: str = ""
    ) -> None:
        """Checks that the run may go back once more.

        Args:
            wish: Who asks, and why.
            step: The present step.
            good: The step that it would go back to, None for the start.
            suspects: What the hint says of kernels.

        Raises:
            TrainingError: It did so too often in the window.
        """
        recent = [one for one in self._done if one["from_step"] > step - self._window_steps]
        if len(recent) < self._budget:
            return
        raise TrainingError(
            f"{wish}; the run went back {len(recent)} times in the last {self._window_steps} "
            f"steps, and max_rollbacks={self._budget}",
            where=f"step {step}",
            hint="lower learner.schedule.peak, or look at the data of these steps; "
            f"`axcore train --from-step {good or 0}` resumes from the newest good checkpoint"
            f"{suspects}",
        )

    def add(self, wish: RollBack, *, from_step: int, step: int, data: Any) -> None:
        """Records that the run went back from a step to an older one.

        Args:
            wish: Who asked, and why.
            from_step: The newest step that is undone.
            step: The step that training resumes from.
            data: The position in the data that it continues with; None for that of the checkpoint.
        """
        time = datetime.now(UTC).isoformat(timespec="seconds")
        one = {"time": time, "from_step": from_step, "step": step, "reason": str(wish)}
        self._done.append({**one, "data": data})
        if is_process_zero():
            append_json_line(self._path, self._done[-1])

    def data_after(self, step: int) -> Any:
        """Returns where the data continues after a step that the run went back to, None if not."""
        found = [one["data"] for one in self._done if one["step"] == step]
        return found[-1] if found else None
