"""`Worker`: the trainer's side of a process that computes a reward or runs an environment."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import IO, Any, Protocol

from axcore.config import walk
from axcore.config.json_files import parse_json
from axcore.config.values import is_config
from axcore.rewards.worker_process import MAX_ANSWER, SHOWN, SLACK

_START_S = 300.0
"""Seconds until a worker has imported what the reward needs: torch takes half a minute."""

_GRACE_S = 5.0
"""The worker itself ends a call at its limit; where it is stopped, the trainer does, after this."""

_MAX_REPLY = 2 * MAX_ANSWER
_SCRIPT = "__main__"
_RUN = "from axcore.rewards.worker_process import main; main()"


class WorkerConfig(Protocol):
    """What a config says about its processes."""

    @property
    def time_limit_s(self) -> float:
        """Seconds that a call may take."""

    @property
    def num_workers(self) -> int | None:
        """How many there are; None for one on each core, up to 8."""

    @property
    def memory_mib(self) -> int:
        """Address space that each may use."""


class WorkerRequest(Protocol):
    """What a process is asked."""

    @property
    def seed_text(self) -> str:
        """What the random numbers of the call follow from."""

    def ask(self, callee: Any) -> Any:
        """Make the call."""

    def checked(self, callee: Any, value: Any) -> Any:
        """Return what it returned, as JSON."""


class NotAnswered(Exception):  # noqa: N818 - what happened; the text says why, as an end of a sentence
    """A call was not answered.

    Args:
        error: Why, in a line.
        details: A traceback, or the stacks of what hung.
    """

    def __init__(self, error: str, details: str = "") -> None:
        super().__init__(error, details)
        self.error, self.details = error, details


class WorkerNotStarted(NotAnswered):
    """What is called could not be made in a worker: it will not be for the next call either."""


class Worker:
    """A process that answers one request after another; it starts with the first one, and again.

    Args:
        setup: What the process needs before it can answer.
        time_limit_s: Of a call.
    """

    def __init__(self, setup: bytes, time_limit_s: float) -> None:
        self._setup, self._limit_s = setup, time_limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Any = None
        self._lifeline = -1
        self._stacks: IO[bytes] | None = None

    def answers(self, requests: Sequence[WorkerRequest]) -> Iterator[Any]:
        """Yield the answer to each request, or the `NotAnswered` that says why there is none.

        Raises:
            WorkerNotStarted: What is called cannot be made.
        """
        todo = list(requests)
        while todo:
            if self._process is None:
                self._start()
            # In one message, or each answer would wait for two changes of processes.
            with contextlib.suppress(OSError):  # it ended meanwhile, which reading finds
                self._connection.send_bytes(pickle.dumps(todo))
            while todo and self._process is not None:
                yield self._next_answer()
                del todo[0]

    def _next_answer(self) -> Any:
        began = time.monotonic()
        try:
            reply = self._reply((1 + SLACK) * self._limit_s + _GRACE_S)
        except (EOFError, OSError):
            return self._ended(time.monotonic() - began)
        return reply["value"] if "value" in reply else NotAnswered(reply["error"], reply["details"])

    # Called from another thread than `answers`, and without a lock
    # on purpose: the pipe breaks, and reading an answer ends with EOFError.
    def kill(self) -> None:
        """End the process, and what it started."""
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    def close(self) -> int:
        """End the process, and return its exit status."""
        process = self._process
        if process is None:
            return 0
        self._connection.close()
        # It may have ended by itself, and then its status says how.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
        # Its group too: what the reward started would live on.
        self.kill()
        status = process.wait()
        self._process = None
        os.close(self._lifeline)
        if self._stacks is not None:
            self._stacks.close()
        return status

    def _start(self) -> None:
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._connection, calls = Pipe()
        lifeline, self._lifeline = os.pipe()
        kept = (lifeline, calls.fileno(), self._stacks.fileno())
        try:
            # A new interpreter, not a fork: this process has threads and
            # devices, and a fork copies locks that nobody will release.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _RUN, *map(str, kept)],
                pass_fds=kept,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_environment()},
                # Ctrl-C is for the trainer; and a group of its own can be killed as a whole.
                start_new_session=True,
            )
        finally:
            calls.close()
            os.close(lifeline)
        try:
            self._connection.send_bytes(self._setup)
            reply = self._reply(_START_S)
        except (EOFError, OSError):
            raise WorkerNotStarted(self._ended(0.0).error) from None
        if "ready" not in reply:
            self.close()
            raise WorkerNotStarted(reply["error"], reply["details"])

    def _reply(self, limit_s: float) -> dict[str, Any]:
        if not self._connection.poll(limit_s):
            self.kill()
        reply: dict[str, Any] = parse_json(self._connection.recv_bytes(_MAX_REPLY))
        return reply

    def _ended(self, passed_s: float) -> NotAnswered:
        """Return why the process ended, which is closed."""
        stacks = b""
        if self._stacks is not None:
            stacks = os.pread(self._stacks.fileno(), SHOWN, 0)
        status = self.close()
        details = _of_reward(stacks.decode("utf-8", "replace"))
        # The worker's own clock decides: this process may have looked late.
        if passed_s >= self._limit_s or details.startswith("Timeout"):
            return NotAnswered(f"it took longer than {self._limit_s:g} s", details)
        if status < 0:
            return NotAnswered(f"it was ended by {_signal_name(-status)}", details)
        return NotAnswered(f"it ended its process with exit code {status}", details)


def _of_reward(stacks: str) -> str:
    """Return stacks without that of the thread that waits for the trainer's end."""
    threads = stacks.strip().split("\n\n")
    return "\n\n".join(one for one in threads if " in _end_with" not in one)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _environment() -> dict[str, str]:
    return {
        # Where this process finds modules: also those next to a script.
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        # Sets of texts have one order in all workers, so that a score never depends on which it is.
        "PYTHONHASHSEED": "0",
        # The devices are the trainer's.
        "JAX_PLATFORMS": "cpu",
        # There are several workers: more threads in each only get in each other's way.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


def worker_setup(cfg: WorkerConfig) -> bytes:
    """Return what a worker has to be sent before it can answer.

    Raises:
        ConfigError: What is called is defined where no other process finds it.
    """
    names = {name for name, _ in _own_names(cfg)}
    modules = sorted((name, _file_of(name)) for name in names - {_SCRIPT})
    return pickle.dumps(
        {
            "modules": [one for one in modules if one[1]],
            "script": _definitions(cfg) if _SCRIPT in names else None,
            "config": pickle.dumps(cfg),
            "memory_bytes": cfg.memory_mib << 20,
            "time_limit_s": cfg.time_limit_s,
        }
    )


def _own_names(cfg: Any) -> Iterator[tuple[str, str]]:
    """Yield module and name of each class and function of a config that axcore does not have."""
    for _, node in walk(cfg):
        found: Any = type(node) if is_config(node) else node if callable(node) else None
        module = getattr(found, "__module__", None)
        if isinstance(module, str) and module.partition(".")[0] not in ("axcore", "builtins"):
            yield module, str(found.__qualname__)


def _file_of(module: str) -> str:
    file = getattr(sys.modules.get(module), "__file__", None)
    return str(Path(file).resolve()) if file else ""


def _definitions(cfg: Any) -> str:
    """Return what of the script defines what is called."""
    from axcore.trainer.run_directory.code import definitions_of, find_code

    find_code(cfg)  # refuses what has no file, and what is within a function
    names = {name.partition(".")[0] for module, name in _own_names(cfg) if module == _SCRIPT}
    return definitions_of(Path(_file_of(_SCRIPT)).read_text(encoding="utf-8"), names)
