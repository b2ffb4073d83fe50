"""`Heartbeat`: a trainer's side of the pipe to its supervisor.

A beat is a line, `STEP PHASE`. One is written when either changes, and by a thread when nothing
does. No beats from a living process mean that it is stopped, or that a thread holds the GIL.

AXCORE_SUPERVISOR    PID,BEATS,STACKS: the supervisor's process, and two file descriptors
"""

import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import MutableMapping
from typing import NoReturn

import attrs

SUPERVISOR_VARIABLE = "AXCORE_SUPERVISOR"
_INTERVAL_S = 0.2
STACKS_SIGNAL = signal.SIGUSR2
"""Asks a process for the stacks of its threads; it answers while the GIL is held, too."""

_PR_SET_PDEATHSIG = 1


@attrs.frozen
class Beat:
    """What a process does: the step it is at, and the phase of that step.

    Args:
        step: Steps begun; -1 before the run knows.
        phase: As the trainer's `PhaseStarted` labels it.
    """

    step: int = -1
    phase: str = "start"

    def line(self) -> bytes:
        """Return the beat as the pipe carries it."""
        return f"{self.step} {self.phase}\n".encode()

    @classmethod
    def read(cls, line: bytes) -> "Beat":
        """Return the beat of a line."""
        step, _, phase = line.decode().partition(" ")
        return cls(int(step), phase.strip())


class Heartbeat:
    """Reports to the supervisor: that this process lives, and what it does."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._beat = Beat()
        os.set_blocking(pipe, False)
        os.set_inheritable(pipe, False)  # what this process starts doesn't hold the pipe open
        self._write()
        threading.Thread(target=self._repeat, name="heartbeat", daemon=True).start()

    def report(self, *, step: int | None = None, phase: str | None = None) -> None:
        """Say what this process does from now on."""
        old = self._beat
        self._beat = Beat(old.step if step is None else step, phase or old.phase)
        if self._beat != old:
            self._write()

    def _repeat(self) -> None:
        while True:
            time.sleep(_INTERVAL_S)
            self._write()

    def _write(self) -> None:
        try:
            os.write(self._pipe, self._beat.line())
        except BlockingIOError:
            return  # the supervisor is behind; it will read a later beat
        except BrokenPipeError:
            _end_without_supervisor()


def connect_heartbeat(environment: MutableMapping[str, str] = os.environ) -> Heartbeat | None:
    """Return the heartbeat of a supervised process, None where nobody supervises it.

    The process dies with its supervisor from here on. The variable is taken out of the environment:
    it is not for processes that this one starts.
    """
    text = environment.pop(SUPERVISOR_VARIABLE, "")
    if not text:
        return None
    supervisor, beats, stacks = map(int, text.split(","))
    _die_with(supervisor)
    os.set_inheritable(stacks, False)
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
    return Heartbeat(beats)


def _die_with(supervisor: int) -> None:
    """Ask the kernel to kill this process when its supervisor ends; the pipe serves elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        _end_without_supervisor()  # it ended before the kernel was asked


def _end_without_supervisor() -> NoReturn:
    """End this process at once, with all that it started where it leads a group of its own."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(128 + signal.SIGKILL)
