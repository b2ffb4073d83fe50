"""A spare: a trainer started ahead, which imports what it needs and waits for its turn.

Its environment is that of a trainer from the start, but for what changes with each attempt.

AXCORE_SPARE    the file descriptor that it reads those variables from, as JSON, when its turn comes
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor

from axcore.resilience.heartbeat import Heartbeat

SPARE_VARIABLE = "AXCORE_SPARE"
READY = "spare"
"""The phase of a spare that has nothing left to import."""

_LOWEST_PRIORITY = 19


def wait_for_turn(
    heartbeat: Heartbeat | None,
    imports: Callable[[], None],
    environment: MutableMapping[str, str] = os.environ,
) -> float | None:
    """Returns when the turn of this spare came, since the epoch; None at once where it is none.

    Args:
        heartbeat: Reports that the spare is ready.
        imports: Imports what a trainer needs, and starts no devices.
        environment: Gets the variables of the attempt.
    """
    text = environment.pop(SPARE_VARIABLE, "")
    if not text:
        return None
    with ThreadPoolExecutor(1, initializer=_lower_priority) as importing:
        importing.submit(imports).result()
    _report(heartbeat, READY)
    with open(int(text), encoding="utf-8") as turn:
        line = turn.readline()
    if not line:
        sys.exit(0)  # the supervisor ended
    environment.update(json.loads(line))
    _report(heartbeat, "start")
    return time.time()


def _lower_priority() -> None:
    """Takes processor time that nobody else wants; Linux does so for the calling thread alone."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)


def _report(heartbeat: Heartbeat | None, phase: str) -> None:
    if heartbeat is not None:
        heartbeat.report(phase=phase)
