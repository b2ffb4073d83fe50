"""This machine: all processes of a run side by side, their output marked by who wrote it."""

import contextlib
import errno
import os
import random
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from axcore.config import config
from axcore.errors import ProcessError
from axcore.launch.children import (
    Child,
    ProcessStart,
    StartedProcess,
    StopRequests,
    first_failure,
    shell_exit_code,
)
from axcore.launch.job import Job, Launcher
from axcore.launch.process_info import COORDINATOR, NUM_PROCESSES, PROCESS_ID

# Also how late a failed process is noticed.
_POLL_S = 0.05
_KILLED = (-signal.SIGKILL, -signal.SIGTERM)
_PORTS = range(20_000, 30_000)
"""Below those that systems give to connections, any of which would take a port before its run."""


@config
class Local(Launcher):
    """All processes on this machine; where one fails, all are ended.

    Ctrl-C and SIGTERM are handed on to every process, which then save and stop together; a second
    one ends them at once.

    Args:
        environment: Variables of every process.
        grace_s: Seconds that the others have to end by themselves after one has failed.
    """

    is_local: ClassVar[bool] = True

    environment: Mapping[str, str] = {}
    grace_s: float = 5.0

    def render(self, job: Job) -> str:
        """Return the commands, as a shell reads them."""
        lines = []
        for variables in self._variables(job, "localhost:PORT"):
            settings = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
            lines.append(" ".join([*settings, job.shell_line]) + " &")
        return "\n".join([*lines, "wait", ""])

    def launch(self, job: Job) -> int:
        """Run the processes to their end; return the exit code of the first that failed."""
        children: list[Child] = []
        with StopRequests() as stop, contextlib.ExitStack() as ended:
            stop.reach(children)
            for index, start in enumerate(self.starts(job)):
                children.append(Child(start, index, mark_of(index, job.processes)))
                ended.callback(children[-1].end)
            _wait(children, stop)
            failed = first_failure(children)
            end_others(children, self.grace_s)
            return _exit_code(failed, is_one_of_several=job.processes > 1 and not stop.count)

    def starts(self, job: Job) -> list[ProcessStart]:
        """Return what each process is started with; each call names another free port.

        Raises:
            ProcessError: The program is not installed.
        """
        command = found(job.command)
        return [
            ProcessStart(
                command=command,
                environment={**os.environ, **variables},
                can_wait=job.command[:2] == ("axcore", "train"),
            )
            for variables in self._variables(job, f"localhost:{free_port()}")
        ]

    def _variables(self, job: Job, coordinator: str) -> Iterator[dict[str, str]]:
        for index in range(job.processes):
            several = {
                COORDINATOR: coordinator,
                NUM_PROCESSES: str(job.processes),
                PROCESS_ID: str(index),
            }
            yield {**self.environment, **(several if job.processes > 1 else {})}


def mark_of(index: int, process_count: int) -> str:
    """Return what a process's lines begin with."""
    return f"[{index}] " if process_count > 1 else ""


def end_others(children: Sequence[StartedProcess], grace_s: float) -> None:
    """Give processes some time to end by themselves, where another failed, and then kills them."""
    # One limit for all together, not for each.
    end = time.monotonic() + grace_s
    for child in children:
        if not child.wait(max(0.0, end - time.monotonic())):
            print(f"process {child.index} is ended, because another failed", file=sys.stderr)
            child.end()


def _wait(children: Sequence[Child], stop: StopRequests) -> None:
    """Return when all have ended, or one failed that was not asked to stop."""
    while True:
        codes = [child.exit_code() for child in children]
        # After Ctrl-C all are expected to end, whatever their codes.
        if None not in codes or (any(codes) and not stop.count):
            return
        time.sleep(_POLL_S)


def _exit_code(failed: Child | None, *, is_one_of_several: bool) -> int:
    """Return how a run ended: a process that was killed from outside is one that it lost."""
    code = 0 if failed is None else failed.exit_code() or 0
    if failed is None or code not in _KILLED or not is_one_of_several:
        return shell_exit_code(code)
    name = signal.Signals(-code).name
    print(f"process {failed.index} was lost: it was ended by {name}", file=sys.stderr)
    return ProcessError.exit_code


def free_port() -> int:
    """Return a port of this machine that nobody listens on now."""
    while True:
        # At random: two launches at the same time would both take the first one that is free.
        port = random.SystemRandom().choice(_PORTS)
        try:
            with socket.socket() as free:
                free.bind(("", port))
            return port
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise


def found(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command whose program is found as this one was: ours is that of this Python.

    Raises:
        ProcessError: The program is not installed.
    """
    if command[0] == "axcore":
        # The axcore of this very Python: another one may be first on the path.
        return (sys.executable, "-m", "axcore", *command[1:])
    if shutil.which(command[0]) is None:
        raise ProcessError(f"there is no program {command[0]!r}", where="launch", hint="install it")
    return command
