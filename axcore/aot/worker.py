"""The process in which programs are compiled: `python -m axcore.aot.worker < REQUEST`.

A process compiles for one chip only, and its environment is set before JAX starts. It reads the
config, the target and the experiment's name as JSON from standard input, and writes the report, or
the error, as JSON into the file that is its argument.
"""

import json
import sys
from pathlib import Path
from typing import Any

from axcore.aot.cost.measure import measure
from axcore.aot.report.report import Report
from axcore.aot.rollouts import RolloutReport, measure_rollouts
from axcore.aot.serving.measure import measure_serving
from axcore.aot.serving.report import ServingLoad, ServingReport
from axcore.aot.targets import find_aot_target
from axcore.config import from_json
from axcore.config.json_files import parse_json
from axcore.errors import AxcoreError
from axcore.plugins import Hardware
from axcore.trainer import ResolvedConfig
from axcore.trainer.compile import files_of_modules, versions_of


def main(request: str, answer: Path) -> None:
    """Compile what a request asks for, and write the answer."""
    # Errors go into the file as values, not into stderr: the compiler writes there as it likes, and
    # may abort the process, after which there is no file.
    asked = parse_json(request)
    hardware = Hardware.parse(asked["target"])
    try:
        report = _report(asked, hardware)
        answered = {"report": report.to_json(), "files": versions_of(files_of_modules())}
        answer.write_text(json.dumps(answered), encoding="utf-8")
    except AxcoreError as error:
        parts = {
            "class": type(error).__name__,
            "what": error.what,
            "where": error.where,
            "set_in": error.set_in,
            "hint": error.hint,
        }
        answer.write_text(json.dumps({"error": parts}), encoding="utf-8")


def _report(asked: dict[str, Any], hardware: Hardware) -> Report | ServingReport | RolloutReport:
    experiment, target = asked["experiment"], find_aot_target(hardware)
    cfg = from_json(asked["config"], set_in=experiment)
    if "serves" in asked:
        engine = from_json(asked["serves"]["engine"], set_in=experiment)
        load = ServingLoad(engine=engine, prompt=asked["serves"]["prompt"])
        return measure_serving(cfg, hardware, target, load, experiment=experiment)
    resolved = ResolvedConfig(config=cfg, hardware=hardware)
    if "rollouts" in asked:
        prompt = asked["rollouts"]["prompt"]
        return measure_rollouts(resolved, target, experiment=experiment, prompt=prompt)
    return measure(resolved, target, experiment=experiment)


if __name__ == "__main__":
    main(sys.stdin.read(), Path(sys.argv[1]))
