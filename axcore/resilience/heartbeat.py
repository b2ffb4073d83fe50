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
# A few hundred to the shortest `beat_s` that makes sense, and too rare to be seen in a profile.
_INTERVAL_S = 0.2
# SIGUSR1 is what Slurm's --signal and people's scripts use.
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
        # A supervisor that is stopped (Ctrl-Z, a debugger) must
        # not stop training once the pipe's 64 KiB are full.
        os.set_blocking(pipe, False)
        os.set_inheritable(pipe, False)  # what this process starts doesn't hold the pipe open
        self._write()
        # A daemon: it never ends by itself. It needs the GIL, which
        # is on purpose: silence means that Python does not run.
        threading.Thread(target=self._repeat, name="heartbeat", daemon=True).start()

    def report(self, *, step: int | None = None, phase: str | None = None) -> None:
        """Say what this process does from now on."""
        old = self._beat
        # One assignment of a frozen value: the thread that repeats
        # it sees the old beat or the new one, never a mixture.
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
            # Lines are far below PIPE_BUF, so each is written whole or not at all.
            return  # the supervisor is behind; it will read a later beat
        except BrokenPipeError:
            # A trainer whose supervisor is gone would hold devices that
            # the next start needs, and nobody would collect its exit code.
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
    # In C, in a signal handler: it answers while the main thread waits
    # in a collective, where a handler of Python would never run.
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
    return Heartbeat(beats)


def _die_with(supervisor: int) -> None:
    """Ask the kernel to kill this process when its supervisor ends; the pipe serves elsewhere."""
    if sys.platform == "linux":
        # The default of a killed supervisor is an orphan; a shell
        # that is closed with SIGKILL sends nothing to its children.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        _end_without_supervisor()  # it ended before the kernel was asked


def _end_without_supervisor() -> NoReturn:
    """End this process at once, with all that it started where it leads a group of its own."""
    # Only as leader of a group: otherwise the group is that
    # of the shell or of the test runner that started this.
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    # `_exit`: handlers of exit would wait for other processes, which are ending as well.
    os._exit(128 + signal.SIGKILL)
