"""`Spares`: for each process of a run one that waits to take its place."""

from collections.abc import Iterable, Sequence

from axcore.launch.children import ProcessStart
from axcore.launch.local import mark_of
from axcore.resilience.tracked_process import SpareProcess, TrackedProcess


class Spares:
    """Keeps spares while a run makes steps, and gives them to the next attempt."""

    def __init__(self) -> None:
        self._waiting: dict[int, SpareProcess] = {}
        self._survivors: dict[int, SpareProcess] = {}

    def prepare(self, starts: Sequence[ProcessStart]) -> None:
        """Starts a spare for each process whose program can wait, where there is none."""
        for index, start in enumerate(starts):
            if start.can_wait and index not in self._waiting:
                self._waiting[index] = SpareProcess(start, index, mark_of(index, len(starts)))

    def keep(self, survivors: Iterable[SpareProcess]) -> None:
        """Takes processes that have left theirs; each takes its own place in the next attempt."""
        self._survivors.update({one.index: one for one in survivors})

    def take(self, start: ProcessStart, index: int, mark: str) -> TrackedProcess:
        """Returns a process that begins now: a survivor, the spare, or a new one."""
        for waiting in (self._survivors, self._waiting):
            spare = waiting.pop(index, None)
            if spare is not None and spare.begin(start):
                return spare
            if spare is not None:
                spare.close()
        return TrackedProcess(start, index, mark)

    def take_lasting(self, start: ProcessStart, index: int, mark: str) -> TrackedProcess:
        """Returns a process that begins now, and that can leave."""
        if not start.can_wait or {index} & {*self._survivors, *self._waiting}:
            return self.take(start, index, mark)
        made = SpareProcess(start, index, mark)
        made.begin(start)
        return made

    def close(self) -> None:
        """Ends all spares."""
        waiting = [*self._survivors.values(), *self._waiting.values()]
        self._survivors.clear()
        self._waiting.clear()
        for spare in waiting:
            spare.child.kill()
        for spare in waiting:
            spare.close()
