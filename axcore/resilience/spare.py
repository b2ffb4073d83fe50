"""A spare: a trainer started ahead, which imports what it needs and waits for its turn.

Its environment is that of a trainer from the start, but for what changes with each attempt. A
trainer that survived the loss of another one may leave its attempt, and is a spare again.

AXCORE_SPARE    the file descriptor that it reads those variables from, as JSON, when its turn comes
"""

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor

from axcore.config.json_files import parse_json
from axcore.resilience.heartbeat import Heartbeat

SPARE_VARIABLE = "AXCORE_SPARE"
READY = "spare"
"""The phase of a spare that has nothing left to import."""

_LOWEST_PRIORITY = 19


STOOD_DOWN = "stood_down"
"""The phase of a trainer that has left its attempt and waits for the next one."""


LEAVE = "leave\n"
"""The line by which a supervisor asks a trainer to leave."""


class Turns:
    """When a process may begin; at once, and once only, where it is no spare."""

    def __init__(
        self,
        heartbeat: Heartbeat | None,
        environment: MutableMapping[str, str] = os.environ,
    ) -> None:
        """Takes the variable out of the environment.

        Args:
            heartbeat: Reports that the process is ready.
            environment: Gets the variables of each attempt.
        """
        text = environment.pop(SPARE_VARIABLE, "")
        self._pipe = int(text) if text else None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._heartbeat = heartbeat
        self._environment = environment

    @property
    def has_more(self) -> bool:
        """Whether there may be another turn."""
        return self._pipe is not None

    def wait(
        self, imports: Callable[[], None], on_leave: Callable[[], None] = lambda: None
    ) -> float | None:
        """Returns when the first turn came, since the epoch; None at once where this is no spare.

        Args:
            imports: Imports what a trainer needs, and starts no devices.
            on_leave: Called on a thread when the process is to leave its attempt.
        """
        if self._pipe is None:
            return None
        read = (self._pipe, on_leave)
        threading.Thread(target=self._read, args=read, name="turns", daemon=True).start()
        with ThreadPoolExecutor(1, initializer=_lower_priority) as importing:
            importing.submit(imports).result()
        _report(self._heartbeat, READY)
        return self._next()

    def stand_down(self) -> float:
        """Says that this process has left its attempt; returns when the next turn came."""
        _report(self._heartbeat, STOOD_DOWN)
        return self._next()

    def _next(self) -> float:
        line = self._lines.get()
        if not line:
            sys.exit(0)  # the supervisor ended
        self._environment.update(parse_json(line))
        _report(self._heartbeat, "start")
        return time.time()

    def _read(self, pipe: int, on_leave: Callable[[], None]) -> None:
        with open(pipe, encoding="utf-8") as lines:
            for line in lines:
                if line == LEAVE:
                    on_leave()
                else:
                    self._lines.put(line)
        self._lines.put("")


def _lower_priority() -> None:
    """Takes processor time that nobody else wants; Linux does so for the calling thread alone."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)


def _report(heartbeat: Heartbeat | None, phase: str) -> None:
    if heartbeat is not None:
        heartbeat.report(step=-1, phase=phase)
