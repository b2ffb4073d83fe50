"""What a report shows of evaluations: the results that `axcore evaluate` kept with a run.

RUN/evaluation/STEP/TASK.json    metrics by name, each with a value and its standard error
"""

from pathlib import Path
from typing import Any

from axcore.config.json_files import read_json_file

EVALUATION_FOLDER = "evaluation"


def evaluations(folder: Path) -> list[dict[str, Any]]:
    """Returns the results of each task and step, the oldest step first.

    Raises:
        ValueError: A file is no result.
    """
    files = (folder / EVALUATION_FOLDER).glob("*/*.json")
    steps = [file for file in files if file.parent.name.isdecimal() and file.name != "model.json"]
    found = [_result(file) for file in steps]
    return sorted(found, key=lambda one: (one["step"], one["task"]))


def _result(file: Path) -> dict[str, Any]:
    try:
        found = read_json_file(file)
        metrics = {
            name: {key: one[key] for key in ("value", "standard_error")}
            for name, one in found["metrics"].items()
        }
        return {
            "step": int(file.parent.name),
            "task": str(found["task"]),
            "num_samples": int(found["num_samples"]),
            "metrics": metrics,
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{file} is no result of an evaluation: {type(error).__name__}: {error}"
        ) from error
