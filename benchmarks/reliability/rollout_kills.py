"""`kill -9` in a rollout, in a reward and in an update; the run resumes, equal bit by bit.

    python benchmarks/reliability/rollout_kills.py --kills 30

A small GRPO run, whose rollouts are sampled ahead and trained on twice, is killed at a random
occurrence of one of the three, again and again, until a start gets to the end; then the next run
begins. Every finished run must have the parameters of the run that nobody killed.

Its default form takes about 32 minutes on two cores.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from _paths import TESTS
from _result import record_promise
from quick_flags import compile_cache, quick_environment

WORKER = TESTS / "rollouts" / "rollout_worker.py"
LAST = {"rollout": 50, "reward": 64, "update": 12}
"""How often each occurs in a run that nobody kills, at most."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        kills, equal, runs = run_all(Path(scratch), options.kills)
    places = ", ".join(f"{kills[name]} in a {name}" for name in LAST)
    text = f"{equal} of {runs} runs equal bit by bit; killed {places}"
    seconds = time.monotonic() - began
    path = record_promise("rollout_kills", tries=kills.total(), outcome=text, seconds=seconds)
    print(text, path)
    sys.exit(equal != runs)


def run_all(scratch: Path, wanted: int) -> tuple[Counter[str], int, int]:
    """Return how often each place was deadly, and how many of the runs were equal."""
    environment = {**quick_environment(), **compile_cache(scratch / "compiled")}
    whole = start(environment, scratch / "whole")
    chosen = random.Random(0)
    kills: Counter[str] = Counter()
    equal = runs = 0
    while kills.total() < wanted:
        directory, out = scratch / f"run{runs}", ""
        # A few kills a run, and then a start that nobody kills.
        for _ in range(chosen.randint(1, 4)):
            phase = chosen.choice(sorted(LAST))
            out = start(environment, directory, phase, str(chosen.randint(1, LAST[phase])))
            if out:
                break
            kills[phase] += 1
        equal += (out or start(environment, directory)) == whole
        runs += 1
        print(f"{kills.total()} kills, {equal} of {runs} runs equal", flush=True)
    return kills, equal, runs


def start(environment: Any, *arguments: Path | str) -> str:
    """Return what a start printed of its state; nothing where it was killed."""
    done = subprocess.run(
        [sys.executable, str(WORKER), *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, -9):
        raise SystemExit(done.stderr[-3000:])
    return "".join(one for one in done.stdout.splitlines() if "DIGEST" in one)


if __name__ == "__main__":
    main()
