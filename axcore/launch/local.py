"""This machine: all processes of a run side by side, their output marked by who wrote it."""

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import IO, Any, ClassVar

from axcore.config import config
from axcore.errors import ProcessError
from axcore.launch.job import Job
from axcore.launch.launcher import Launcher
from axcore.launch.process_info import COORDINATOR, NUM_PROCESSES, PROCESS_ID

_POLL_S = 0.05


@config
class Local(Launcher):
    """Starts the processes here, and ends all of them where one fails.

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
        """Returns the commands, as a shell reads them."""
        lines = []
        for variables in self._variables(job, "localhost:PORT"):
            settings = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
            lines.append(" ".join([*settings, job.shell_line]) + " &")
        return "\n".join([*lines, "wait", ""])

    def launch(self, job: Job) -> int:
        """Runs the processes to their end; returns the exit code of the first that failed."""
        with _Processes(self.grace_s, is_marked=job.processes > 1) as processes:
            for variables in self._variables(job, f"localhost:{_free_port()}"):
                processes.start(_found(job.command), {**os.environ, **variables})
            return processes.wait()

    def _variables(self, job: Job, coordinator: str) -> Iterator[dict[str, str]]:
        for index in range(job.processes):
            several = {
                COORDINATOR: coordinator,
                NUM_PROCESSES: str(job.processes),
                PROCESS_ID: str(index),
            }
            yield {**self.environment, **(several if job.processes > 1 else {})}


class _Processes:
    """Children that live and die together, and signals that reach all of them."""

    def __init__(self, grace_s: float, *, is_marked: bool) -> None:
        self._grace_s = grace_s
        self._is_marked = is_marked
        self._children: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        self._before: dict[int, Any] = {}
        self._num_signals = 0

    def __enter__(self) -> "_Processes":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._hand_on)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        for child in self._children:
            child.kill()
            child.wait()
        for reader in self._readers:
            reader.join()

    def start(self, command: list[str], environment: Mapping[str, str]) -> None:
        """Starts one child, out of reach of the terminal's own signals."""
        child = subprocess.Popen(
            command,
            env={"PYTHONUNBUFFERED": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        mark = f"[{len(self._children)}] " if self._is_marked else ""
        self._children.append(child)
        for source, target in ((child.stdout, sys.stdout), (child.stderr, sys.stderr)):
            reader = threading.Thread(target=_copy, args=(source, target, mark))
            reader.start()
            self._readers.append(reader)

    def wait(self) -> int:
        """Waits until all have ended; 0 where all did well."""
        while True:
            codes = [child.poll() for child in self._children]
            failed = [index for index, code in enumerate(codes) if code]
            is_stopping = self._num_signals > 0  # then each ends in its own time
            if None not in codes or (failed and not is_stopping):
                break
            time.sleep(_POLL_S)
        if not failed:
            return 0
        self._end_others()
        return _exit_code(codes[failed[0]] or 0)

    def _end_others(self) -> None:
        end = time.monotonic() + self._grace_s
        for index, child in enumerate(self._children):
            try:
                child.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                print(f"process {index} is ended, because another failed", file=sys.stderr)
                child.kill()

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        self._num_signals += 1
        for child in self._children:
            if child.poll() is None:
                child.send_signal(number if self._num_signals == 1 else signal.SIGKILL)


def _copy(source: IO[str], target: IO[str], mark: str) -> None:
    with source:
        for line in source:
            target.write(f"{mark}{line}")
            target.flush()


def _exit_code(code: int) -> int:
    return 128 - code if code < 0 else code


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])


def _found(command: tuple[str, ...]) -> list[str]:
    """Returns a command whose program is found as this one was: ours is that of this Python."""
    if command[0] == "axcore":
        return [sys.executable, "-m", "axcore", *command[1:]]
    if shutil.which(command[0]) is None:
        raise ProcessError(
            f"there is no program {command[0]!r}", where="launch local", hint="install it"
        )
    return list(command)
