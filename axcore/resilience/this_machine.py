"""`LocalProcess`: a supervised process on this machine, with the descriptors it reports through.

AXCORE_STANDBY    the file descriptor from which a standby worker reads, as JSON, the variables that
                  changed since its start, when its turn comes
"""

import contextlib
import os
import signal
import tempfile
from pathlib import Path
from typing import IO

import attrs

from axcore.launch.children import Child, ProcessStart
from axcore.resilience.heartbeat import STACKS_SIGNAL, SUPERVISOR_VARIABLE

STANDBY_VARIABLE = "AXCORE_STANDBY"


class LocalProcess(Child):
    """A child that reports to this process: what it does, and the stacks of its threads.

    Attributes:
        pipe: A descriptor from which its beats are read.
    """

    def __init__(
        self, start: ProcessStart, index: int, mark: str, *, takes_turns: bool = False
    ) -> None:
        """Start the process, with the pipes and the file that it reports through."""
        self.pipe, beats = os.pipe()
        os.set_blocking(self.pipe, False)  # one stopped process must not stop the supervisor
        # A file, not a pipe: a process whose threads' stacks do not
        # fit into a pipe's 64 KiB would block in its signal handler.
        self._stacks: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - until close
        descriptors = (beats, self._stacks.fileno())
        # The supervisor's pid goes along, so that the child can notice
        # that it ended before the child could ask to die with it.
        variables = {SUPERVISOR_VARIABLE: ",".join(map(str, (os.getpid(), *descriptors)))}
        turns = os.pipe() if takes_turns else ()
        self._turn = turns[-1] if turns else None
        if turns:
            variables[STANDBY_VARIABLE] = str(turns[0])
        started = attrs.evolve(start, environment={**start.environment, **variables})
        super().__init__(started, index, mark, (*descriptors, *turns[:1]))
        # The write end stays in the child alone, or the pipe would not close when the process ends.
        os.close(beats)
        # A second reader here would steal the child's lines.
        for turn in turns[:1]:
            os.close(turn)

    @property
    def is_stopped(self) -> bool:
        """Whether the process is stopped, as by SIGSTOP."""
        return process_state(self.pid) in ("T", "t")

    def send_line(self, line: str) -> None:
        """Write a line to where a standby worker reads what it is to do."""
        assert self._turn is not None, "it was started to take turns"
        with contextlib.suppress(BrokenPipeError):  # its end shows in its exit code
            os.write(self._turn, line.encode())

    def ask_for_stacks(self) -> None:
        """Ask the process for its stacks; one that is stopped is woken to answer."""
        self.send(STACKS_SIGNAL)
        if self.is_stopped:
            # The dump needs a signal, which a stopped process does not handle, so it runs again.
            self.send(signal.SIGCONT)

    def stacks(self) -> str:
        """Return the stacks that the process wrote so far."""
        size = os.fstat(self._stacks.fileno()).st_size
        # `pread`: the child writes through the same open
        # file description, whose position must not move.
        return os.pread(self._stacks.fileno(), size, 0).decode(errors="replace")

    def close(self) -> None:
        """Give the descriptors back, after its end."""
        os.close(self.pipe)
        self._stacks.close()
        if self._turn is not None:
            os.close(self._turn)


def process_state(pid: int) -> str:
    """Return the kernel's letter for what a process does: R, S, D, T, ...; "" where unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


class _ThisMachine:
    """The machine of this process, as a host of its run."""

    def start(
        self, start: ProcessStart, index: int, mark: str, *, takes_turns: bool
    ) -> LocalProcess:
        """Start a process."""
        return LocalProcess(start, index, mark, takes_turns=takes_turns)


THIS_MACHINE = _ThisMachine()
