"""What it costs to start: imports, commands, and training to its first step.

Each is measured in turn with an interpreter that does nothing, and the medians' difference is what
axcore adds. Training starts once with no compiled programs at hand, then with those that it kept;
the first step is done when its loss is printed. Processor time is that of the process until then.
Python keeps the modules that it compiled, as it does by default.
Goals: `axcore config show` in 0.6 s, an experiment's import in 1.0 s, the first step in 3 s.

    python benchmarks/startup.py
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _record import record

PROGRAMS = {
    "empty": "pass",
    "import_axcore": "import axcore",
    "import_axcore_config": "import axcore.config",
    "import_axcore_plugins": "import axcore.plugins",
    "import_jax": "import jax",
    "import_axcore_experiments_tiny": "import axcore.experiments.tiny",
    "axcore_config_show_tiny": "from axcore.cli.main import main; main('config show tiny'.split())",
    "axcore_help": "from axcore.cli.main import main; main(['--help'])",
}


ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
}


def seconds(program: str) -> float:
    """Return how long a fresh interpreter takes to run a program."""
    started = time.perf_counter()
    command = [sys.executable, "-c", program]
    subprocess.run(command, check=True, capture_output=True, env=ENVIRONMENT)
    return time.perf_counter() - started


def loads_jax(program: str) -> bool:
    """Return whether a program leaves jax imported."""
    program_and_check = (
        f"import atexit, sys; atexit.register(lambda: print('jax' in sys.modules)); {program}"
    )
    done = subprocess.run(
        [sys.executable, "-c", program_and_check], check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()[-1] == "True"


def first_step(cache: Path) -> dict[str, float]:
    """Return how long `axcore train tiny` takes to print the loss of its first step."""
    with tempfile.TemporaryDirectory() as run:
        command = ["train", "tiny", "--dir", run, "--set", "logging.every_steps=1"]
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "axcore", *command],
            env=ENVIRONMENT | {"XDG_CACHE_HOME": str(cache)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        with process.stdout as lines:
            is_there = any(line.startswith("step 1 ") for line in lines)
            in_all_s = time.perf_counter() - started
            process.kill()
        used = os.wait4(process.pid, 0)[2]
    assert is_there, "training ended before its first step"
    return {"in_all_s": round(in_all_s, 2), "processor_s": round(used.ru_utime + used.ru_stime, 2)}


def first_steps(rounds: int) -> dict[str, Any]:
    """Return the times with nothing compiled, and the medians of those with all of it."""
    with tempfile.TemporaryDirectory() as cache:
        cold = first_step(Path(cache))
        warm = [first_step(Path(cache)) for _ in range(rounds)]
    medians = {name: round(statistics.median(one[name] for one in warm), 2) for name in cold}
    return {"nothing_compiled": cold, "compiled_before": medians}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for program in PROGRAMS.values():
        seconds(program)  # now its modules are compiled
    for _ in range(rounds):
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
    figures["axcore_train_tiny_to_first_step"] = first_steps(max(3, rounds // 3))
    print(f"first step of axcore train tiny  {figures['axcore_train_tiny_to_first_step']}")
    record("startup", figures)


if __name__ == "__main__":
    main()
