"""What it costs to start: `import axcore`, `axcore --help` and others, each in a fresh interpreter.

Each is measured in turn with an interpreter that does nothing, and the medians' difference is what
axcore adds. Run: python benchmarks/startup.py
"""

import statistics
import subprocess
import sys
import time
from typing import Any

from _record import record

ROUNDS = 15

PROGRAMS = {
    "empty": "pass",
    "import_axcore": "import axcore",
    "import_axcore_config": "import axcore.config",
    "import_axcore_plugins": "import axcore.plugins",
    "import_jax": "import jax",
    "import_axcore_experiments_tiny": "import axcore.experiments.tiny",
    "axcore_help": "from axcore.cli.main import main; main(['--help'])",
}


def seconds(program: str) -> float:
    """Returns how long a fresh interpreter takes to run a program."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    return time.perf_counter() - started


def loads_jax(program: str) -> bool:
    """Returns whether a program leaves jax imported."""
    program_and_check = (
        f"import atexit, sys; atexit.register(lambda: print('jax' in sys.modules)); {program}"
    )
    done = subprocess.run(
        [sys.executable, "-c", program_and_check], check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()[-1] == "True"


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(ROUNDS):
        for name, program in PROGRAMS.items():
            times[name].append(seconds(program))
    empty = statistics.median(times["empty"])
    figures: dict[str, Any] = {"empty_interpreter_s": round(empty, 4)}
    for name, program in PROGRAMS.items():
        if name != "empty":
            median = statistics.median(times[name])
            figures[name] = {
                "in_all_s": round(median, 4),
                "above_empty_s": round(median - empty, 4),
                "imports_jax": loads_jax(program),
            }
            print(f"{name:<32} {median:.3f} s, {(median - empty) * 1e3:.0f} ms above empty")
    record("startup", figures)


if __name__ == "__main__":
    main()
