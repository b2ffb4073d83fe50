"""`compile_for`: the report of a config on a target, compiled in a process of its own."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from axcore import errors
from axcore.aot.report import Report, report_from_json
from axcore.aot.targets import compile_environment, find_aot_target
from axcore.config import to_json
from axcore.plugins import Hardware

SHOWN_LINES = 20


def compile_for(cfg: Any, target: str, *, experiment: str = "experiment") -> Report:
    """Returns the report of a trainer's step, really compiled for `target`.

    Args:
        cfg: The trainer's config; its own mesh rules, and plugins', are applied for the target.
        target: The hardware's name; none of it need be here.
        experiment: Its name in the report.

    Raises:
        PluginError: No plugin knows the target, or its compiler is not installed.
        AxcoreError: The config does not fit the target, or the compiler failed.
    """
    hardware = Hardware.parse(target)
    record = find_aot_target(hardware)
    request = {"config": to_json(cfg), "target": hardware.name, "experiment": experiment}
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        done = subprocess.run(
            [sys.executable, "-m", "axcore.aot.child", str(answer)],
            input=json.dumps(request),
            env=compile_environment(record, hardware),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if not answer.exists():
            raise _failed(done, hardware)
        told = json.loads(answer.read_text(encoding="utf-8"))
    if "error" in told:
        raise _error_of(told["error"])
    return report_from_json(told["report"])


def _failed(done: "subprocess.CompletedProcess[str]", hardware: Hardware) -> errors.AxcoreError:
    last = "\n".join(done.stderr.strip().splitlines()[-SHOWN_LINES:])
    return errors.AotError(
        f"the compiler for {hardware.name} ended with code {done.returncode}:\n{last}",
        where=f"target {hardware.name}",
        mend="if the config is right, report it with the whole output",
    )


def _error_of(parts: dict[str, Any]) -> errors.AxcoreError:
    kind = getattr(errors, parts.pop("class"), errors.AxcoreError)
    error: errors.AxcoreError = kind(parts.pop("what"), **parts)
    return error
