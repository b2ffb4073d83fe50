"""`compile_for`: the report of a config on a target, compiled in a separate process.

`ReportCache` keeps reports in a folder, so that a search does not compile twice.
"""

import hashlib
import json
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from axcore import errors
from axcore.aot.report.report import Report, report_from_json
from axcore.aot.rollouts import RolloutReport, rollout_report_from_json
from axcore.aot.serving.report import ServingLoad, ServingReport, serving_report_from_json
from axcore.aot.targets import compile_environment, find_aot_target
from axcore.config import to_json
from axcore.config.json_files import read_json_file
from axcore.plugins import Hardware

if TYPE_CHECKING:
    from axcore.trainer import ResolvedConfig


SHOWN_LINES = 20


FLAGS = re.compile(r"JAX_.*|.*_(FLAGS|ARGS)")
"""Variables of the environment by which JAX or a compiler makes another program."""


@attrs.frozen
class ReportCache:
    """A folder of answers, each of which holds until a file of Python that it came from changes."""

    folder: Path

    def find(self, request: str, environment: Mapping[str, str]) -> dict[str, Any] | None:
        """Return the answer to a request, if it still holds; warn where it cannot be read."""
        from axcore.trainer.compile import versions_of

        path = self._path(request, environment)
        if not path.exists():
            return None
        try:
            answered: dict[str, Any] = read_json_file(path)
            files = {file: found and tuple(found) for file, found in answered["files"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            warnings.warn(f"{path} cannot be read, and is made again: {error!r}", stacklevel=2)
            return None
        return answered if files == versions_of(files) else None

    def keep(self, request: str, environment: Mapping[str, str], answered: Any) -> None:
        """Leave an answer."""
        from axcore.whole_files import write_whole

        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self._path(request, environment), json.dumps(answered).encode())

    def _path(self, request: str, environment: Mapping[str, str]) -> Path:
        flags = {name: value for name, value in environment.items() if FLAGS.fullmatch(name)}
        asked = json.dumps([request, flags], sort_keys=True)
        return self.folder / f"{hashlib.sha256(asked.encode()).hexdigest()}.json"


def compile_for(cfg: Any, target: str, *, experiment: str = "experiment") -> Report:
    """Return the report of a trainer's step, really compiled for `target`.

    Args:
        cfg: The trainer's config; it is resolved for the target.
        target: The hardware's name; none of it need be here.
        experiment: Its name in the report.

    Raises:
        PluginError: No plugin knows the target, or its compiler is not installed.
        AxcoreError: The config does not fit the target, or the compiler failed.
    """
    from axcore.trainer import resolve

    return compile_resolved(resolve(cfg, Hardware.parse(target)), experiment)


def compile_resolved(
    resolved: "ResolvedConfig", experiment: str, *, kept: ReportCache | None = None
) -> Report:
    """Return the report of a resolved config's step, as `compile_for` does.

    Args:
        resolved: The config and its target.
        experiment: Its name in the report.
        kept: Where an answer is looked for before compiling, and left after.
    """
    hardware = resolved.hardware
    record = find_aot_target(hardware)
    environment = compile_environment(record, hardware)
    asked = {"config": to_json(resolved.config), "target": hardware.name, "experiment": experiment}
    request = json.dumps(asked)
    answered = kept.find(request, environment) if kept else None
    if answered is None:
        answered = _compiled(request, environment, hardware)
        if kept:
            kept.keep(request, environment, answered)
    return attrs.evolve(report_from_json(answered["report"]), changes=resolved.mesh_rule_diff())


def compile_serving(
    cfg: Any, hardware: Hardware, load: ServingLoad, *, experiment: str = "experiment"
) -> ServingReport:
    """Return the report of a trainer's config that serves, compiled for hardware as `compile_for`.

    Args:
        cfg: The trainer's config. No mesh rule is applied: those are of training. A mesh that the
            config sets itself holds.
        hardware: The target.
        load: The engine that serves it, and its texts.
        experiment: Its name in the report.

    Raises:
        PluginError: The target's compiler is not installed.
        AxcoreError: The config does not fit the target, or the compiler failed.
    """
    environment = compile_environment(find_aot_target(hardware), hardware)
    asked = {
        "config": to_json(cfg),
        "target": hardware.name,
        "experiment": experiment,
        "serves": {"engine": to_json(load.engine), "prompt": load.prompt},
    }
    answered = _compiled(json.dumps(asked), environment, hardware)
    return serving_report_from_json(answered["report"])


def compile_rollouts(
    resolved: "ResolvedConfig", *, prompt: int | None = None, experiment: str = "experiment"
) -> RolloutReport:
    """Return the report of a config that trains on rollouts, compiled as `compile_for` does.

    Args:
        resolved: The config and its target.
        prompt: Tokens of every prompt; None takes the longest that a row holds.
        experiment: Its name in the report.

    Raises:
        PluginError: The target's compiler is not installed.
        AxcoreError: The config has no rollouts, does not fit the target, or the compiler failed.
    """
    hardware = resolved.hardware
    environment = compile_environment(find_aot_target(hardware), hardware)
    asked = {
        "config": to_json(resolved.config),
        "target": hardware.name,
        "experiment": experiment,
        "rollouts": {"prompt": prompt},
    }
    answered = _compiled(json.dumps(asked), environment, hardware)
    report = rollout_report_from_json(answered["report"])
    train = attrs.evolve(report.train, changes=resolved.mesh_rule_diff())
    return attrs.evolve(report, train=train)


def _compiled(request: str, environment: Mapping[str, str], hardware: Hardware) -> dict[str, Any]:
    """Return what a process of its own answers."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        done = subprocess.run(
            [sys.executable, "-m", "axcore.aot.worker", str(answer)],
            input=request,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if not answer.exists():
            raise _failed(done, hardware)
        answered: dict[str, Any] = read_json_file(answer)
    if "error" in answered:
        raise _error_of(answered["error"])
    return answered


def _failed(done: "subprocess.CompletedProcess[str]", hardware: Hardware) -> errors.AxcoreError:
    last = "\n".join(done.stderr.strip().splitlines()[-SHOWN_LINES:])
    return errors.AotError(
        f"the compiler for {hardware.name} ended with code {done.returncode}:\n{last}",
        where=f"target {hardware.name}",
        hint="if the config is right, report it with the full output",
    )


def _error_of(parts: dict[str, Any]) -> errors.AxcoreError:
    kind = getattr(errors, parts.pop("class"), errors.AxcoreError)
    error: errors.AxcoreError = kind(parts.pop("what"), **parts)
    return error
