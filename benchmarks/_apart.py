"""Figures from a process of its own: one process compiles for one chip, and its environment is set
before JAX starts.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from _record import record, recorded, stamped

from axcore.aot import find_aot_target
from axcore.aot.targets import compile_environment
from axcore.plugins import Hardware


def measured_apart(target: str, *command: str, libtpu_flags: str = "") -> dict[str, Any]:
    """Return the figures that a command of this Python prints as JSON, in its last line.

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


def record_cases(
    name: str,
    cases: Sequence[str],
    measure: Callable[[str], dict[str, Any]],
    *,
    target: str,
    summary: str,
) -> dict[str, Any]:
    """Measure cases of the script that was called, each in a process of its own; keeps each.

    The script's arguments may choose some. Returns the figures of all that are recorded.

    Args:
        name: Of the results.
        cases: Their names.
        measure: Returns the figures of one, in the process that is for it.
        target: What they are compiled for.
        summary: What the script does.
    """
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--only", action="append", help="cases whose name holds this text")
    parser.add_argument("--only-measure", choices=cases, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only_measure:
        print(json.dumps(measure(given.only_measure)))
        sys.exit()
    for case in cases:
        if given.only is None or any(text in case for text in given.only):
            one = measured_apart(target, sys.argv[0], "--only-measure", case)
            figures = {**recorded(name), case: stamped(one, target)}
            print(case, json.dumps(figures[case]), flush=True)
            in_order = {one: figures[one] for one in cases if one in figures}
            record(name, in_order, command=f"python benchmarks/{name}.py")
    return recorded(name)
