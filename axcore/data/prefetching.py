"""`PrefetchedBatches`: batches that a thread prepares ahead of the step that reads them."""

import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator
from typing import Any

from axcore.data.loading import Policy, State, TrainBatches
from axcore.data.packing import Batch

_LONGEST_STOP_S = 10.0


class PrefetchedBatches(Iterator[Batch]):
    """Training batches with as exact a position as without a thread.

    The position is that after the batches that were taken; those that wait are prepared again
    after a resume. What goes wrong in the thread is raised where its batch would be taken.

    Attributes:
        waited_s: Seconds that takers have waited for batches.
    """

    def __init__(self, batches: TrainBatches, *, ahead: int) -> None:
        """Starts nothing yet.

        Args:
            batches: What to read.
            ahead: How many batches wait at most; 0 prepares each when it is taken, and so are those
                that follow the weights.
        """
        self.waited_s = 0.0
        self._batches = batches
        self._ahead = 0 if batches.follows_policy else ahead
        self._state = batches.get_state()
        self._reader: _Reader | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """All that a batch depends on besides its step."""
        return self._batches.identity

    @property
    def follows_policy(self) -> bool:
        """Whether batches depend on the weights."""
        return self._batches.follows_policy

    def on_policy(self, policy: Policy) -> None:
        """Says so to what is read; see `TrainBatches.on_policy`."""
        self._batches.on_policy(policy)

    def start(self) -> None:
        """Starts to prepare batches, which taking the first one does otherwise."""
        if self._reader is None and self._ahead:
            self._reader = _Reader(self._batches, self._ahead)

    def __next__(self) -> Batch:
        self.start()
        since = time.perf_counter()
        try:
            if self._reader is None:
                batch = next(self._batches)
                self._state = self._batches.get_state()
            else:
                batch, self._state = self._reader.take()
        finally:
            self.waited_s += time.perf_counter() - since
        return batch

    def get_state(self) -> State:
        """Returns the position after the batches that were taken."""
        return self._state

    def set_state(self, state: State) -> None:
        """Goes to a saved position; see `TrainBatches.set_state`."""
        self._stop()
        self._batches.set_state(state)
        self._state = self._batches.get_state()

    def close(self) -> None:
        """Ends the thread; one that storage holds up for long is left behind with a warning."""
        if self._reader is not None and not self._reader.stop(_LONGEST_STOP_S):
            warnings.warn(
                f"a thread still reads training data {_LONGEST_STOP_S:.0f} s after it was to stop",
                stacklevel=2,
            )
            return
        self._stop()

    def _stop(self) -> None:
        """Ends the thread and drops the batches that wait; the next batch is still the next."""
        if self._reader is not None:
            self._reader.stop(None)
            self._reader = None
            self._batches.set_state(self._state)


class _Reader:
    """One thread that reads batches, and the few that wait."""

    def __init__(self, batches: TrainBatches, ahead: int) -> None:
        self._batches = batches
        self._ahead = ahead
        self._waiting: deque[tuple[Batch, State] | BaseException] = deque()
        self._changed = threading.Condition()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._read, name="prefetch batches", daemon=True)
        self._thread.start()

    def take(self) -> tuple[Batch, State]:
        """Returns the next batch and the position after it, or raises what its reading raised."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting)
            found = self._waiting[0]
            if isinstance(found, BaseException):
                raise found  # stays the first: there is nothing after it
            self._waiting.popleft()
            self._changed.notify_all()
        return found

    def stop(self, limit_s: float | None) -> bool:
        """Ends the thread after the batch that it is at; returns whether it ended in time."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _read(self) -> None:
        while self._has_room():
            found: tuple[Batch, State] | BaseException
            try:
                batch = next(self._batches)
                found = batch, self._batches.get_state()
            except BaseException as error:  # or whoever takes the batch would wait for ever
                error.add_note("while a batch was prepared ahead of its step")
                found = error
            with self._changed:
                self._waiting.append(found)
                self._changed.notify_all()
            if isinstance(found, BaseException):
                return

    def _has_room(self) -> bool:
        """Waits until a batch may be prepared; returns False when none is wanted any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or len(self._waiting) < self._ahead)
            return not self._is_stopped
