"""Results of benchmarks as JSON: the figures, and what they were measured with."""

import json
import os
import platform
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = Path(os.environ.get("BENCHMARK_RESULTS", REPOSITORY / "benchmarks" / "results"))
PACKAGES = ("jax", "jaxlib", "numpy", "optax")


def record(name: str, figures: dict[str, Any], *, command: str = "") -> Path:
    """Writes `results/<name>.json` with command, versions and hardware, and returns its path.

    Args:
        name: Of the benchmark.
        figures: What it measured.
        command: What remakes all figures, where the call at hand made only some of them.
    """
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    content = {
        "command": command
        or " ".join(["python", str(_script()), *map(_without_place, sys.argv[1:])]),
        "versions": {
            "python": platform.python_version(),
            **{package: version(package) for package in PACKAGES},
        },
        "hardware": hardware(),
        "figures": figures,
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


def _without_place(argument: str) -> str:
    """Returns an argument, without where another environment's Python lies on this machine."""
    return re.sub(r"^/.*/bin/python$", "VENV/bin/python", argument)


def _script() -> Path:
    """Returns the script that runs, as it is called from the repository."""
    return Path(sys.argv[0]).resolve().relative_to(REPOSITORY)


def hardware() -> dict[str, Any]:
    """Returns the processor, its cores, and how busy the machine was in the last minute."""
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_average_1min": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
