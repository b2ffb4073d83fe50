"""`run_program`: a program that a model wrote and its checks, each in a sandbox of its own.

The kernel confines both, by what `axcore.sandbox.mechanisms` lists. The program's process has
neither the checks nor the pipe of the verdict, and answers calls by values:

    program  <- calls, values ->  checks  - verdict ->  run_program
"""

import base64
import contextlib
import functools
import json
import os
import selectors
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import attrs

from axcore.config import PositiveFloat, PositiveInt, config
from axcore.errors import ConfigError, ProcessError
from axcore.sandbox.mechanisms import (
    INSTALL_HINT,
    MECHANISMS,
    call_filter,
    command,
    interpreter,
)

_SCRIPT = str(Path(__file__).with_name("confine.py"))
_SHOWN = 2000
_MIB = 1 << 20
_START_S = 60.0
"""Seconds until both processes are confined: tenths where the machine is idle."""

_LOOK_S = 0.02
"""Seconds between looks at what a program wrote."""

UNSANDBOXED = "none"
"""The mechanism that confines nothing, where that is allowed."""


@config
class ProgramLimits:
    """Describes what a program may use.

    Args:
        seconds: From its start to the end of its checks; of a processor, one more.
        memory_mib: Of address space.
        file_mib: Of each file that it writes, its output among them.
        files_mib: Of all files in its folder together.
        max_files: In its folder, folders among them.
    """

    seconds: PositiveFloat = 5.0
    memory_mib: PositiveInt = 512
    file_mib: PositiveInt = 4
    files_mib: PositiveInt = 16
    max_files: PositiveInt = 1000


@attrs.frozen
class Verdict:
    """What checks found of a program.

    Args:
        status: "passed" where the checks ran to their end, "failed" or "timeout".
        reason: Why it did not pass.
        output: The end of what the program printed.
    """

    status: str
    reason: str
    output: str


def run_program(
    code: str,
    checks: str,
    limits: ProgramLimits,
    *,
    mechanism: str | None = None,
    allow_unsandboxed: bool = False,
) -> Verdict:
    """Run a program and then its checks; returns the verdict, and leaves nothing running.

    Threads can call it at the same time.

    Args:
        code: The program, in Python.
        checks: Python that calls functions of the program by their names, or as `program.NAME`, and
            raises an exception where one does not do what it should.
        limits: What each of the two may use.
        mechanism: What `choose_mechanism` returns, which is the default.
        allow_unsandboxed: Whether the program runs also where no mechanism works; it can then do
            whatever this user can.

    Raises:
        ConfigError: No mechanism works, or checks are empty.
        ProcessError: The sandbox did not start.
    """
    if not checks.strip():
        raise ConfigError("a program has no checks", where="checks", hint='checks="assert f(1)"')
    if mechanism is None:
        mechanism = choose_mechanism(allow_unsandboxed=allow_unsandboxed)
    with contextlib.ExitStack() as stack:
        sandbox = _Sandbox(stack, mechanism, limits)
        output = stack.enter_context(tempfile.TemporaryFile())
        complaints = stack.enter_context(tempfile.TemporaryFile())
        verdict_out, verdict_in = os.pipe()
        verdict = stack.enter_context(os.fdopen(verdict_out, "rb", buffering=0))
        # Each end goes to one process, and the verdict's to none but that of the checks. All are
        # closed here: else no end of a process would be seen as the end of its pipe.
        with os.fdopen(verdict_in, "wb"), _pipe() as calls, _pipe() as values:
            sandbox.start("program", code, (calls[0], values[1]), output)
            sandbox.start("checks", checks, (values[0], calls[1], verdict_in), complaints)
        status, reason = sandbox.wait(verdict)
        sandbox.kill()
        if status == "setup":
            said = _end(complaints) + _end(output)
            raise ProcessError(
                f"the sandbox did not start: {said.strip()[-_SHOWN:] or reason}",
                where=f"mechanism {mechanism}",
                hint=f"raise limits.memory_mib ({limits.memory_mib}); see `axcore doctor`",
            )
        return Verdict(status, reason, _end(output))


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """Yield both ends of a pipe, and closes them."""
    out, into = os.pipe()
    try:
        yield out, into
    finally:
        os.close(out)
        os.close(into)


class _Sandbox:
    """Two processes under a mechanism, and how they end."""

    def __init__(self, stack: contextlib.ExitStack, mechanism: str, limits: ProgramLimits) -> None:
        self._stack, self._mechanism, self._limits = stack, mechanism, limits
        self._processes: list[subprocess.Popen[bytes]] = []
        self._folders: list[str] = []
        self._infos: list[int] = []

    def start(self, role: str, code: str, descriptors: Sequence[int], output: IO[bytes]) -> None:
        """Start one process, which prints to `output`."""
        folder = tempfile.mkdtemp(prefix="axcore-program-")
        self._stack.callback(_remove, folder)
        self._stack.callback(self.kill)  # first: it might still write
        said = self._said(role, code, folder, descriptors)
        info_out, info_in = os.pipe()
        self._infos.append(info_out)
        self._stack.callback(os.close, info_out)
        try:
            process = subprocess.Popen(
                command(
                    self._mechanism,
                    _SCRIPT,
                    files_bytes=self._limits.files_mib * _MIB,
                    info=info_in,
                ),
                cwd=folder,
                env={},  # it has keys and tokens
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(*descriptors, info_in),
                start_new_session=True,  # to be killed as a group, and to have no terminal
            )
        finally:
            os.close(info_in)
        self._processes.append(process)
        self._folders.append(folder)
        assert process.stdin is not None, "it is a pipe"
        with contextlib.suppress(BrokenPipeError), process.stdin as file:  # it failed to start
            file.write(json.dumps(said).encode())

    def _said(
        self, role: str, code: str, folder: str, descriptors: Sequence[int]
    ) -> Mapping[str, Any]:
        limits, is_confined = self._limits, self._mechanism != UNSANDBOXED
        most = {
            "RLIMIT_AS": limits.memory_mib * _MIB,
            "RLIMIT_FSIZE": limits.file_mib * _MIB,
            "RLIMIT_CPU": int(limits.seconds) + 1,
            "RLIMIT_NOFILE": 64,
            "RLIMIT_CORE": 0,
            **({"RLIMIT_NPROC": 0} if is_confined else {}),
        }
        # Libraries that would start threads, which are refused.
        threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        return {
            "role": role,
            "code": code,
            "mechanism": self._mechanism,
            "folder": folder,
            "descriptors": descriptors,
            "limits": most if sys.platform == "linux" else {"RLIMIT_CPU": most["RLIMIT_CPU"]},
            "files_bytes": limits.files_mib * _MIB,
            "max_files": limits.max_files,
            "readable": interpreter().readable,
            "packages": interpreter().packages,
            "environment": {"PATH": "/usr/bin:/bin", **dict.fromkeys(threads, "1")},
            "filter": base64.b64encode(call_filter()).decode() if is_confined else "",
        }

    def wait(self, verdict: IO[bytes]) -> tuple[str, str]:
        """Return the status and reason, from the pipe that only checks write to."""
        deadline, is_ready = time.monotonic() + _START_S, False
        text, watch = b"", _Watch(self._limits)
        with selectors.DefaultSelector() as selector, contextlib.closing(watch):
            selector.register(verdict, selectors.EVENT_READ)
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    return ("timeout", f"{self._limits.seconds:g} s") if is_ready else ("setup", "")
                if selector.select(min(left, _LOOK_S)):
                    piece = verdict.read(1 << 16)
                    if not piece:
                        return ("failed", "its checks ended early") if is_ready else ("setup", "")
                    text += piece
                    while b"\n" in text:
                        line, _, text = text.partition(b"\n")
                        found = json.loads(line)
                        if found != ["ready"]:
                            return found[0], found[1]
                        # Time starts here: a machine that is slow to start fails no program.
                        is_ready, deadline = True, time.monotonic() + self._limits.seconds
                        self._start_watch(watch)
                excess = watch.excess()
                if excess is not None:
                    return "failed", excess

    def _start_watch(self, watch: "_Watch") -> None:
        # The kernel bounds the tmpfs of `namespaces`, but not the number of files in bubblewrap's.
        if self._mechanism == "bubblewrap":
            for info in self._infos:
                number = json.loads(os.read(info, 1 << 12))["child-pid"]
                watch.add_file_system(f"/proc/{number}/root/program")
        elif self._mechanism != "namespaces":
            watch.folders.extend(self._folders)

    def kill(self) -> None:
        """Kill both; a program cannot leave its group, for the filter refuses that."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):  # all of it ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            # In a container, this process may be the first one, which adopts the child. Without
            # the wait, each program would leave a zombie.
            with contextlib.suppress(ChildProcessError):
                while True:
                    os.waitpid(-process.pid, 0)
        self._processes.clear()


class _Watch:
    """Looks at what processes write, where the kernel does not bound all of it."""

    def __init__(self, limits: ProgramLimits) -> None:
        self.folders: list[str] = []
        self._limits = limits
        self._file_systems: list[int] = []

    def add_file_system(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # that process has ended
            self._file_systems.append(os.open(path, os.O_PATH | os.O_DIRECTORY))

    def close(self) -> None:
        for one in self._file_systems:
            os.close(one)

    def excess(self) -> str | None:
        """Return what is too much."""
        most, size = self._limits.max_files, self._limits.files_mib * _MIB
        for one in self._file_systems:
            found = os.statvfs(one)
            if found.f_files - found.f_ffree > most + 1:  # and the folder itself
                return f"it made more than {most} files"
        for folder in self.folders:
            total = 0
            try:
                for num, one_size in enumerate(_sizes(folder), start=1):
                    total += one_size
                    if num > most or total > size:
                        return f"it made more than {most} files or {self._limits.files_mib} MiB"
            except (
                OSError,
                RecursionError,
            ) as error:  # folders in folders, deeper than can be seen
                return f"what it made cannot be looked at: {error!r}"
        return None


def _sizes(folder: str) -> Iterator[int]:
    """Yield the size of each file below a folder that changes meanwhile."""

    def check(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    # By descriptors: paths of folders in folders soon become longer than the kernel takes.
    for _, folders, files, descriptor in os.fwalk(folder, onerror=check):
        for name in (*folders, *files):
            with contextlib.suppress(FileNotFoundError):
                found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                yield max(found.st_size, found.st_blocks * 512)


def _remove(folder: str) -> None:
    """Remove a folder; folders in it are emptied into it first, however deep they are."""
    top, mark, number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY), os.urandom(8).hex(), 0
    try:
        while names := os.listdir(top):
            for name in names:
                if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=top)
                    continue
                # To move a folder it has to be writable itself, which its maker may have refused.
                os.chmod(name, 0o700, dir_fd=top)
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=top)
                try:
                    for child in os.listdir(inner):
                        if stat.S_ISDIR(
                            os.stat(child, dir_fd=inner, follow_symlinks=False).st_mode
                        ):
                            os.chmod(child, 0o700, dir_fd=inner)
                        number += 1
                        os.rename(child, f"{mark}{number}", src_dir_fd=inner, dst_dir_fd=top)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(folder)


def _end(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - 4 * _SHOWN))
    return file.read().decode("utf-8", "replace")[-_SHOWN:]


_TRIAL = """
import os, socket
def refused(action):
    try:
        action()
    except OSError:
        return True
    return False
def trial():
    opened = [lambda: open("/etc/passwd"), os.fork, socket.socket]
    return [refused(one) for one in opened]
"""


@functools.cache
def why_not(mechanism: str) -> str | None:
    """Return why a mechanism does not work on this machine, which is tried once; None: it does."""
    if not sys.platform.startswith("linux"):
        return f"{sys.platform} has no such thing"
    try:
        checks = "assert trial() == [True] * 3"
        verdict = run_program(_TRIAL, checks, ProgramLimits(seconds=20), mechanism=mechanism)
    except (OSError, ProcessError) as error:
        return (error.what if isinstance(error, ProcessError) else str(error)).splitlines()[-1]
    return None if verdict.status == "passed" else f"a trial {verdict.status}: {verdict.reason}"


def choose_mechanism(*, allow_unsandboxed: bool = False) -> str:
    """Return the first mechanism that works on this machine.

    Raises:
        ConfigError: None does, and running without one is not allowed.
    """
    reasons = {}
    for one in MECHANISMS:
        reasons[one] = why_not(one)
        if reasons[one] is None:
            return one
    if allow_unsandboxed:
        return UNSANDBOXED
    shown = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    raise ConfigError(
        f"nothing on this machine can confine a program that a model wrote ({shown})",
        where="allow_unsandboxed_code",
        hint=f"{INSTALL_HINT}; or in a machine or container that may be lost, "
        "--allow-unsandboxed-code",
    )
