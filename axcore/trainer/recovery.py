"""Rollbacks and skipped steps of a run, and the budgets that they count against.

rollbacks.jsonl    one JSON object a line for each: time, from_step, step, reason, data

`data` is the position in the data with which the older step continued, null where it took the same
batches again. A run that resumes at that step goes there, too.
"""

from collections import deque
from collections.abc import Iterable
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


class SkippedSteps:
    """Follows the steps of a run that were kept and those that were skipped.

    Attributes:
        newest_kept: The newest step that was kept, or the step that the run resumed from.
        in_a_row: How many steps were skipped since.
    """

    def __init__(self, *, most: int, most_in_a_row: int, window_steps: int) -> None:
        self.newest_kept = 0
        self.in_a_row = 0
        self._most = most
        self._most_in_a_row = most_in_a_row
        self._window: deque[bool] = deque(maxlen=window_steps)

    def resume_at(self, step: int) -> None:
        """Follows from another step on; those of the window still count."""
        self.newest_kept, self.in_a_row = step, 0

    def add(self, are_kept: Iterable[bool]) -> None:
        """Takes the next steps in."""
        for is_kept in are_kept:
            self._window.append(is_kept)
            step = self.newest_kept + self.in_a_row + 1
            self.in_a_row = 0 if is_kept else self.in_a_row + 1
            self.newest_kept = step if is_kept else self.newest_kept

    def check(self, what: str, *, suspects: str = "") -> None:
        """Checks that not too many steps were skipped.

        Args:
            what: Why steps are skipped.
            suspects: What the hint says of kernels.

        Raises:
            RollBack: Too many in a row: the state or the data at hand are at fault.
            TrainingError: Too many in the window.
        """
        step = self.newest_kept + self.in_a_row
        if self.in_a_row > self._most_in_a_row:
            raise RollBack(
                f"{self.in_a_row} steps in a row had {what}, which is more than "
                f"max_skipped_in_a_row={self._most_in_a_row}",
                steps=self.in_a_row,
            )
        skipped = self._window.count(False)
        if skipped > self._most:
            raise TrainingError(
                f"{skipped} of the last {len(self._window)} steps had {what}, which is more than "
                f"max_skipped_steps={self._most}; none of them changed a parameter",
                where=f"step {step}",
                hint=f"lower learner.schedule.peak, or raise max_skipped_steps{suspects}",
            )
