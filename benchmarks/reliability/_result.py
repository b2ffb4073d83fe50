"""Results of the long forms of promises as JSON, one file a promise."""

import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results" / "reliability"
PACKAGES = ("axcore", "jax", "jaxlib", "orbax-checkpoint", "tensorstore")


def record_promise(promise: str, *, tries: int, outcome: str, seconds: float, **more: Any) -> Path:
    """Write `results/reliability/<promise>.json` and return its path."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{promise}.json"
    content = {
        "promise": promise,
        "tries": tries,
        "outcome": outcome,
        "command": " ".join(
            ["python", f"benchmarks/reliability/{Path(sys.argv[0]).name}", *sys.argv[1:]]
        ),
        "versions": {
            "python": platform.python_version(),
            **{package: version(package) for package in PACKAGES},
        },
        "seconds": round(seconds, 1),
        **more,
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path
