"""Figures from a process of its own: one process compiles for one chip, and its environment is set
before JAX starts.
"""

import json
import subprocess
import sys
from typing import Any

from axcore.aot import find_aot_target
from axcore.aot.targets import compile_environment
from axcore.plugins import Hardware


def measured_apart(target: str, *command: str, libtpu_flags: str = "") -> dict[str, Any]:
    """Returns the figures that a command of this Python prints as JSON, in its last line.

    Args:
        target: What it compiles for.
        command: The script and its arguments.
        libtpu_flags: Added to those that the target asks for.
    """
    hardware = Hardware.parse(target)
    environment = dict(compile_environment(find_aot_target(hardware), hardware))
    if libtpu_flags:
        own = environment.get("LIBTPU_INIT_ARGS", "")
        environment["LIBTPU_INIT_ARGS"] = f"{own} {libtpu_flags}".strip()
    called = [sys.executable, *command]
    done = subprocess.run(called, env=environment, check=True, stdout=subprocess.PIPE)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures
