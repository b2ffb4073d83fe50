"""Processes of a run on this machine: each with a group of its own, its output copied to ours."""

import collections
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType
from typing import IO, Any, Protocol, Self, TypeVar

import attrs

# A traceback of a deep stack, with the error that it ends with.
_TAIL_LINES = 30

# 1 and 9 of axcore's own, 12 for a hang, and 128 + a signal: SIGABRT,
# SIGKILL, SIGSEGV, SIGTERM. What a config gets wrong is not among them.
MAY_PASS = (1, 9, 12, 134, 137, 139, 143)
"""Exit codes that another attempt may not meet again: faults, hangs, and what signals ended."""


class StartedProcess(Protocol):
    """A process of a run, on this machine or on another host.

    Attributes:
        index: Of the process in its run.
        error_tail: The last lines of its stderr, complete once it has ended.
    """

    index: int
    error_tail: collections.deque[str]

    @property
    def pid(self) -> int:
        """The process on its host."""

    def exit_code(self) -> int | None:
        """Return how it ended, minus the signal where that ended it; None while it lives."""

    def describe_end(self) -> str:
        """Return how it ended as people read it, without its name."""

    def wait(self, timeout_s: float) -> bool:
        """Return whether it ends within the time."""

    def send(self, number: int) -> None:
        """Send a signal to the process, if it lives."""

    def kill(self) -> None:
        """Kill the process and all that it started, also where itself has ended."""

    def end(self) -> None:
        """Kill the process and all that it started, and read its output to the end."""


class HostedProcess(StartedProcess, Protocol):
    """A process that reports to its supervisor.

    Attributes:
        pipe: A descriptor from which its beats are read.
    """

    pipe: int

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped, as by SIGSTOP."""

    def send_line(self, line: str) -> None:
        """Write a line to where a standby worker reads what it is to do."""

    def ask_for_stacks(self) -> None:
        """Ask the process for its stacks; one that is stopped is woken to answer."""

    def stacks(self) -> str:
        """Return the stacks that the process wrote so far."""

    def close(self) -> None:
        """Give its descriptors back, after its end."""


class Host(Protocol):
    """A machine on which processes of a run are started."""

    def start(
        self, start: "ProcessStart", index: int, mark: str, *, takes_turns: bool
    ) -> HostedProcess:
        """Start a process.

        Args:
            start: What it is started with.
            index: Of the process in its run.
            mark: How lines of its output begin.
            takes_turns: Whether it waits for lines that say what it is to do.
        """


@attrs.frozen(kw_only=True)
class ProcessStart:
    """What one process of a run is started with.

    Args:
        command: Program and arguments.
        environment: All its variables; on another host, those that differ from the variables there.
        can_wait: Whether the program can be started ahead, as a standby worker.
        host: Where it is started; None on this machine.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    can_wait: bool = False
    host: Host | None = None


class Child:
    """One process, whose output is copied to ours, and the last lines of its stderr kept."""

    def __init__(
        self, start: ProcessStart, index: int, mark: str, pass_fds: Sequence[int] = ()
    ) -> None:
        """Start the process in a session of its own, out of reach of the terminal's signals."""
        self.index = index
        self.error_tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self._process = subprocess.Popen(
            start.command,
            # Otherwise the last lines of a process that is killed stay in its own buffer.
            env={"PYTHONUNBUFFERED": "1", **start.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A library may print bytes that are not UTF-8, and the thread that reads them would
            # end.
            errors="replace",
            # Ctrl-C goes to a terminal's full foreground group; here
            # the parent passes it on, so that each gets it once.
            start_new_session=True,
            pass_fds=pass_fds,
        )
        # A thread each: a pipe that nobody reads is full after 64 KiB, and the child would hang.
        self._readers = [
            threading.Thread(target=_copy, args=(source, target, mark, tail), daemon=True)
            for source, target, tail in (
                (self._process.stdout, sys.stdout, None),
                (self._process.stderr, sys.stderr, self.error_tail),
            )
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return how it ended, minus the signal where that ended it; None while it lives."""
        return self._process.poll()

    def describe_end(self) -> str:
        """Return how it ended as people read it, without its name."""
        return describe_exit(self.exit_code() or 0)

    def wait(self, timeout_s: float) -> bool:
        """Return whether it ends within the time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self.exit_code() is not None

    def send(self, number: int) -> None:
        """Send a signal to the process, if it lives."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process and all that it started, also where itself has ended."""
        # The group, not the process: data loaders would outlive a trainer that cannot end them.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill the process and all that it started, and read its output to the end."""
        self.kill()
        self._process.wait()
        # With a limit: a grandchild in a session of its own may hold the pipe open.
        for reader in self._readers:
            reader.join(timeout=5)


class StopRequests:
    """Ctrl-C, SIGTERM and a lost terminal, passed on to the children while the context lasts.

    The first one goes to each child, which saves and stops; the second one kills them. A child
    has no terminal, so SIGHUP reaches it as SIGTERM.
    """

    def __init__(self) -> None:
        self.count = 0
        self._num_signals = 0
        self._requesting = threading.Lock()
        self._children: Sequence[StartedProcess] = ()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # Python sets signal handlers in the main thread only; a test may run in another one.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                # Under nohup it stays ignored, also for the children.
                if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                    self._before[number] = signal.signal(number, self._pass_on)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def reach(self, children: Sequence[StartedProcess]) -> None:
        """Name the children that get the signals from now on."""
        self._children = children

    def request(self) -> None:
        """Ask all to stop, as SIGTERM would; nothing where they were asked before.

        Any thread may. An engine signals all hosts of a job, so a request and the first signal here
        are one request, whichever comes first: the second signal kills.
        """
        with self._requesting:
            if self.count:
                return
            self.count = 1
        self._send(signal.SIGTERM)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        were_asked = self.count > 0
        self._num_signals += 1
        self.count = max(self.count, self._num_signals)
        if self._num_signals > 1:
            self._send(signal.SIGKILL)
        elif not were_asked:
            self._send(signal.SIGTERM if number == signal.SIGHUP else number)

    def _send(self, number: int) -> None:
        # Read at the time of the signal, as processes come and go.
        for child in self._children:
            child.send(number)


P = TypeVar("P", bound=StartedProcess)


def first_failure(children: Iterable[P]) -> P | None:
    """Return the child that failed first, as far as can be seen from how each ended."""
    failed = [child for child in children if child.exit_code()]
    return min(failed, key=lambda child: _rank(child.exit_code()), default=None)


_ABORTED_OR_LOST = (1, -signal.SIGABRT, 9)
# Sorted by how much an exit code says: an abort or exit code 1 may also be the effect of losing a
# peer.
"""Exit codes of a process that lost another one; the surest sign of that comes last."""


def _rank(code: int | None) -> int:
    return 1 + _ABORTED_OR_LOST.index(code) if code in _ABORTED_OR_LOST else 0


def describe_exit(code: int) -> str:
    """Return an exit as people read it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def shell_exit_code(code: int) -> int:
    """Return how a process ended as a shell reports it: 128 + N where signal N ended it."""
    return 128 - code if code < 0 else code


def _copy(
    source: IO[str], target: IO[str], mark: str, tail: "collections.deque[str] | None"
) -> None:
    with source:
        for line in source:
            if tail is not None:
                # Kept before it is printed: the terminal may be gone, and the reason should not be.
                tail.append(line.rstrip("\n"))
            with contextlib.suppress(OSError, ValueError):  # our own terminal may be gone
                target.write(f"{mark}{line}")
                target.flush()
