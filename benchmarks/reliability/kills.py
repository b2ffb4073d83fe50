"""R1: kill -9 at any moment; the run resumes, and its parameters are equal bit by bit.

    python benchmarks/reliability/kills.py --kills 200

A small transformer trains in a process that is killed at a random moment of its life, again and
again until a start gets to the end; then the next run begins. Every finished run must have the
parameters of the run that nobody killed.

Its default form takes about 30 minutes on two cores.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _paths import TESTS
from _result import record_promise
from quick_flags import compile_cache, quick_environment
from texts import write_text

WORKER = TESTS / "trainer" / "training_worker.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        outcome = run_all(Path(scratch), options.kills)
    equal, runs = outcome["equal_runs"], outcome["runs"]
    text = f"{equal} of {runs} runs equal bit by bit"
    seconds = time.monotonic() - began
    print(text, record_promise("R1", tries=outcome["kills"], outcome=text, seconds=seconds))
    sys.exit(equal != runs)


def run_all(scratch: Path, kills: int) -> dict[str, Any]:
    text = scratch / "text"
    write_text(text)
    environment = {**quick_environment(), **compile_cache(scratch / "compiled")}
    start_once(environment, text, scratch / "warm")  # fills the compile cache
    began = time.monotonic()
    whole = start_once(environment, text, scratch / "whole")
    lifetime = time.monotonic() - began
    done, equal, runs = 0, 0, 0
    while done < kills:
        directory = scratch / f"run{runs}"
        killed, digest = killed_until_done(environment, text, directory, lifetime)
        done, runs = done + killed, runs + (killed > 0)
        equal += killed > 0 and digest == whole
        print(f"{done} kills, {equal} of {runs} runs equal", flush=True)
    return {"kills": done, "equal_runs": equal, "runs": runs}


def start_once(environment: Any, text: Path, directory: Path) -> str:
    return str(start(environment, text, directory).communicate(timeout=300)[0])


def killed_until_done(
    environment: Any, text: Path, directory: Path, lifetime: float
) -> tuple[int, str]:
    """Return how often a run was killed before it got to its end, and what it printed there."""
    for kills in range(1000):
        process = start(environment, text, directory)
        try:
            out, _ = process.communicate(timeout=random.uniform(0.1, 0.8) * lifetime)
            return kills, out
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
    raise RuntimeError("a run was killed 1000 times and never got to its end")


def start(environment: Any, text: Path, directory: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, str(WORKER), str(text), str(directory)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


if __name__ == "__main__":
    main()
