"""What a writer does beside saving: marks good steps, sets damaged ones aside, deletes old ones.

None of it is worth ending a run: what fails is a warning, and is tried again after the next save.
"""

import warnings
from collections.abc import Callable

from axcore.checkpoint.faults import CheckpointWarning
from axcore.checkpoint.retention import StepFacts, expired_steps
from axcore.checkpoint.room import describe_room
from axcore.checkpoint.storage import StepStorage


class Housekeeping:
    """Keeps a storage in order; process 0 of a run calls it, while it has the lock."""

    def __init__(self, steps: StepStorage, facts: StepFacts, *, keep: int | None) -> None:
        self._steps = steps
        self._facts = facts
        self._keep = keep
        self._to_mark: set[int] = set()

    def mark_good(self, step: int) -> None:
        """Marks a step that this process found whole."""
        if step in self._facts.whole:
            self._to_mark.add(step)
            self._try("no step could be marked as good", self._mark)
        else:
            self._warn(f"step {step} is not marked as good: this run did not find it whole")

    def tidy(self, step: int, *, num_bytes: int) -> None:
        """Does what is due after a step of so many bytes was saved; the next one needs them again.

        A mark that failed before was for a step of that number in a history that ended.
        """
        self._to_mark.discard(step)
        self._try("no step could be marked as good", self._mark)
        self._try("no step could be set aside", self.set_damaged_aside)
        self._try("no step could be deleted", self._delete_expired)
        self._try("the room left is not known", self._warn_of_little_room, num_bytes)

    def _mark(self) -> None:
        for step in self._to_mark & set(self._steps.committed()):
            if self._try(f"step {step} could not be marked as good", self._steps.mark_good, step):
                self._to_mark.discard(step)

    def set_damaged_aside(self) -> None:
        """Sets aside the steps that this process found damaged, so that none counts as kept."""
        for step in sorted(self._facts.damaged & set(self._steps.committed())):
            if self._try(f"step {step} could not be set aside", self._steps.set_aside, step):
                self._facts.damaged.discard(step)
                self._warn(f"step {step} is damaged, and is kept as step_N.aside")

    def _delete_expired(self) -> None:
        good = self._steps.known_good()
        for step in expired_steps(self._steps.committed(), keep=self._keep, good=good):
            self._try(f"step {step} could not be deleted", self._steps.delete, step)

    def _warn_of_little_room(self, num_bytes: int) -> None:
        free = self._steps.free_bytes()
        if free is not None and free < num_bytes:
            self._warn(f"the next step will not fit: {describe_room(free, num_bytes)}")

    def _try(self, what: str, act: Callable[..., None], *numbers: int) -> bool:
        try:
            act(*numbers)
        except OSError as error:
            self._warn(f"{what}: {error}; this is tried again after the next save")
            return False
        return True

    def _warn(self, text: str) -> None:
        warnings.warn(f"{text} ({self._steps.root})", CheckpointWarning, stacklevel=4)
