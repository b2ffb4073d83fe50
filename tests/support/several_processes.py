"""Starting several processes of one run on this machine, as a launcher would."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from quick_flags import quick_environment

from axcore.launch.local import free_port

SUPPORT = Path(__file__).parent


class Ended(NamedTuple):
    """How a process ended."""

    exit_code: int
    stdout: str
    stderr: str


def free_address() -> str:
    """Returns `host:port` of a port that is free now."""
    return f"localhost:{free_port()}"


def start(
    command: Sequence[object], *, devices: int = 1, environment: Mapping[str, str] | None = None
) -> "subprocess.Popen[str]":
    """Starts Python with some arguments, on host devices."""
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        env={**quick_environment(devices=devices), **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_all(
    script: Path,
    *arguments: object,
    count: int,
    devices: int = 1,
    only: Sequence[int] | None = None,
    environment: Mapping[str, str] | None = None,
) -> list["subprocess.Popen[str]"]:
    """Starts a script once for each process; it gets address, count and index, then the rest.

    Args:
        script: Its first three arguments are for `axcore.distributed.join_processes`.
        arguments: What follows them.
        count: Processes of the run.
        devices: Of each process.
        only: The processes to start; all where left out.
        environment: Variables to set.
    """
    address = free_address()
    return [
        start([script, address, count, index, *arguments], devices=devices, environment=environment)
        for index in (range(count) if only is None else only)
    ]


def finish(process: "subprocess.Popen[str]", timeout_s: float = 300) -> Ended:
    """Waits for a process; one that takes too long is killed, and that is an error."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return Ended(process.returncode, out, err)
