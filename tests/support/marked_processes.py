"""Processes on this machine that have a variable, which all that were started below one have."""

import contextlib
import os
import signal
from pathlib import Path

from axcore.resilience.this_machine import process_state


def processes_with(name, value):
    """Returns the ids of the processes that were started with a variable, the oldest first."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{name}={value}".encode() in (place / "environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
    return sorted(found)


def kill_all_with(name, value):
    """Kills the processes that have a variable, and those that they start meanwhile."""
    while left := processes_with(name, value):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def is_stopped(pid):
    """Returns whether every thread of a process is stopped; one in a call of the kernel ends it."""
    return {process_state(int(thread)) for thread in os.listdir(f"/proc/{pid}/task")} == {"T"}
