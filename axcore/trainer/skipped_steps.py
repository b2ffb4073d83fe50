"""`SkippedSteps`: which of the last steps changed nothing, and how many may."""

from collections import deque
from collections.abc import Iterable

from axcore.errors import TrainingError
from axcore.trainer.guards import RollBack


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
