"""R6: kills trainers of a supervised run whose survivors keep their processes.

    python benchmarks/reliability/in_process.py --kills 50

Two processes train with snapshots in host memory; one of them is killed at a random moment, again
and again, some times before its spare is ready. The spare takes its place, and the survivor joins
it; where it cannot, both processes are new. After each kill the run must make steps again, and at
the end stop well when it is asked to.

Its default form takes about 5 minutes on two cores.
"""

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import _paths  # noqa: F401 - first
from _result import record_promise
from quick_flags import compile_cache, quick_environment
from supervised_kills import LIMIT_S, POLICY, events, wait_for, when, write_experiment


def start(folder: Path, *more: object) -> "subprocess.Popen[bytes]":
    memory = f"snapshots.directory={folder}/memory_{{process}}"
    run = ("-n", "2", "--dir", folder / "run", *POLICY, "--policy", "in_process=true")
    kept = ("--set", "snapshots.every_steps=5", "--set", memory, *more)
    words = ("-m", "axcore", "launch", "local", folder / "small.json", *run, *kept)
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        env={**quick_environment(), **compile_cache(folder / "compiled")},
        stdout=(folder / "output").open("ab"),
        stderr=subprocess.STDOUT,
    )


def strike(folder: Path, number: int) -> dict[str, Any]:
    """Kill one process; returns how long it took to make steps again, and who was kept."""
    stepping = len(events(folder, "stepping"))
    time.sleep(random.uniform(0, 8.0))
    pids = events(folder, "processes_started")[-1]["pids"]
    rank = random.randrange(2)
    killed = time.time()
    os.kill(pids[rank], signal.SIGKILL)
    back = when(wait_for(folder, "stepping", stepping + 1))
    attempts = [one for one in events(folder, "processes_started") if killed < when(one) < back]
    stood = [one for one in events(folder, "stood_down") if killed < when(one) < back]
    found = {
        "rank": rank,
        "to_step_s": back - killed,
        "to_stand_down_s": when(stood[0]) - killed,
        "attempts": len(attempts),
        "spare_was_ready": rank in attempts[0]["standby"],
        "kept_process": attempts[-1]["pids"][1 - rank] == pids[1 - rank],
    }
    print(number, found, flush=True)
    return found


def record(found: list[dict[str, Any]], seconds: float) -> None:
    kept = [one for one in found if one["kept_process"] and one["attempts"] == 1]
    ready = sorted(one["to_step_s"] for one in kept if one["spare_was_ready"]) or [float("nan")]
    others = sorted(one["to_step_s"] for one in found if not one["spare_was_ready"])
    down = [one["to_stand_down_s"] for one in kept] or [float("nan")]
    load = os.getloadavg()[0]
    record_promise(
        "R6",
        tries=len(found),
        outcome=f"the survivor kept its process after {len(kept)} of {len(found)} kills, all "
        "others fell back to new processes; it had left its attempt after "
        f"{statistics.median(down):.2f} s in the median; kill to next step where the spare was "
        f"ready, {len(ready)} kills: {statistics.median(ready):.2f} s in the median, "
        f"{sum(one < 1 for one in ready)} of them in < 1 s, {ready[-1]:.1f} s at most; where it "
        f"was not: {statistics.median(others or [float('nan')]):.1f} s in the median; "
        f"load average {load:.0f} on {os.cpu_count()} cores",
        seconds=seconds,
        load_average_1min=load,
        kills=found,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        write_experiment(folder)
        supervisor = start(folder)
        try:
            wait_for(folder, "stepping", 1)
            found = [strike(folder, number) for number in range(1, options.kills + 1)]
            supervisor.send_signal(signal.SIGTERM)
            assert supervisor.wait(LIMIT_S) == 130
        finally:
            supervisor.terminate()
            supervisor.wait(LIMIT_S)
    record(found, time.monotonic() - began)


if __name__ == "__main__":
    main()
