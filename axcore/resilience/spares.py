"""`Spares`: for each process of a run one that waits to take its place."""

from collections.abc import Sequence

from axcore.launch.children import ProcessStart
from axcore.launch.local import mark_of
from axcore.resilience.tracked_process import SpareProcess, TrackedProcess


class Spares:
    """Keeps spares while a run makes steps, and gives them to the next attempt."""

    def __init__(self) -> None:
        self._waiting: dict[int, SpareProcess] = {}

    def prepare(self, starts: Sequence[ProcessStart]) -> None:
        """Starts a spare for each process whose program can wait, where there is none."""
        for index, start in enumerate(starts):
            if start.can_wait and index not in self._waiting:
                self._waiting[index] = SpareProcess(start, index, mark_of(index, len(starts)))

    def take(self, start: ProcessStart, index: int, mark: str) -> TrackedProcess:
        """Returns a process that begins now: the spare, or a new one where none lives."""
        spare = self._waiting.pop(index, None)
        if spare is None:
            return TrackedProcess(start, index, mark)
        if spare.begin(start):
            return spare
        spare.close()
        return TrackedProcess(start, index, mark)

    def close(self) -> None:
        """Ends all spares."""
        for spare in self._waiting.values():
            spare.child.kill()
        while self._waiting:
            self._waiting.popitem()[1].close()
