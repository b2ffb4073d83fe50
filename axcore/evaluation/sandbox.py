"""`run_program`: a program that a model wrote, in a process of its own with limits.

It protects against accidents: endless loops, memory, files, connections. It is no security
boundary: code that means harm needs a container or a machine of its own.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import attrs

from axcore.config import PositiveFloat, PositiveInt, config

_PROGRAM = Path(__file__).with_name("sandbox_program.py")
_SHOWN = 2000


@config
class ProgramLimits:
    """Describes what a program may use.

    Args:
        seconds: From its start to its end.
        memory_mib: Of address space.
        file_mib: Of each file that it writes, its output among them.
    """

    seconds: PositiveFloat = 5.0
    memory_mib: PositiveInt = 512
    file_mib: PositiveInt = 4


@attrs.frozen
class ProgramResult:
    """How a program ended.

    Args:
        status: "passed" where it ran to its end without an exception, "failed" or "timeout".
        output: The end of what it printed.
    """

    status: str
    output: str


def run_program(code: str, limits: ProgramLimits) -> ProgramResult:
    """Runs a program and returns how it ended; nothing of it is left running."""
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="axcore-program-") as folder:
        Path(folder, "program.py").write_text(code, encoding="utf-8", errors="surrogatepass")
        with Path(folder, "output").open("w+b") as output:
            is_over = _run(folder, output, {"token": token, "limits": _rlimits(limits)}, limits)
            output.seek(0)
            text = output.read().decode("utf-8", "replace")
    if not is_over:
        return ProgramResult("timeout", text[-_SHOWN:])
    passed = text.endswith(f"\n{token}\n")
    return ProgramResult("passed" if passed else "failed", text.replace(token, "")[-_SHOWN:])


def _run(folder: str, output: IO[bytes], said: Mapping[str, Any], limits: ProgramLimits) -> bool:
    """Runs it; returns whether it ended in time."""
    process = subprocess.Popen(
        [sys.executable, "-I", str(_PROGRAM)],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder},
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        process.communicate(f"{json.dumps(said)}\n".encode(), timeout=limits.seconds)
    except subprocess.TimeoutExpired:
        return False
    finally:
        with contextlib.suppress(ProcessLookupError):  # all of it ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return True


def _rlimits(limits: ProgramLimits) -> dict[str, int]:
    mib = 1 << 20
    return {
        "RLIMIT_AS": limits.memory_mib * mib,
        "RLIMIT_FSIZE": limits.file_mib * mib,
        "RLIMIT_CPU": int(limits.seconds) + 1,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_CORE": 0,
    }
