"""R5 and R19: kills trainers of a supervised run of two processes, and its supervisors.

`python benchmarks/reliability/supervised_kills.py --trainers 50 --supervisors 20`. Each kill comes
at a random moment after the processes make steps again.
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
from datetime import datetime
from pathlib import Path

import _paths  # noqa: F401 - first
from _result import record_promise
from quick_flags import compile_cache, quick_environment

from axcore.config import evolve, to_json
from axcore.resilience import read_events
from axcore.resilience.tracked_process import process_state
from axcore.testing.tiny import small_experiment

LIMIT_S = 300
POLICY = ("--policy", "attempts_at_one_step=1000000")
"""Kills from outside may come at one step again and again, before a checkpoint is saved."""


def write_experiment(folder: Path) -> Path:
    cfg = small_experiment(folder / "text")
    checkpoint = evolve(cfg.checkpoint, every_steps=10)
    changes = {"max_steps": 1_000_000, "eval_every_steps": 1_000_000, "checkpoint": checkpoint}
    path = folder / "small.json"
    path.write_text(to_json(evolve(cfg, **changes)), encoding="utf-8")
    return path


def start(folder: Path) -> "subprocess.Popen[bytes]":
    arguments = (
        "launch",
        "local",
        folder / "small.json",
        "-n",
        "2",
        "--dir",
        folder / "run",
        *POLICY,
    )
    return subprocess.Popen(
        [sys.executable, "-m", "axcore", *map(str, arguments)],
        env={**quick_environment(), **compile_cache(folder / "compiled")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def events(folder: Path, name: str) -> list:
    return [one for one in read_events(folder / "run").events if one["event"] == name]


def wait_for(folder: Path, name: str, count: int) -> dict:
    end = time.monotonic() + LIMIT_S
    while len(found := events(folder, name)) < count:
        if time.monotonic() > end:
            raise TimeoutError(f"event {name} number {count} did not come")
        time.sleep(0.02)
    return found[-1]


def when(event: dict) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


def is_alive(pid: int) -> bool:
    return process_state(pid) not in ("", "Z")


def kill_trainers(folder: Path, tries: int) -> None:
    began, noticed, back = time.monotonic(), [], []
    supervisor = start(folder)
    for number in range(1, tries + 1):
        wait_for(folder, "stepping", number)
        time.sleep(random.SystemRandom().uniform(0, 1))
        rank = random.SystemRandom().randrange(2)
        killed = time.time()
        os.kill(events(folder, "processes_started")[-1]["pids"][rank], signal.SIGKILL)
        noticed.append(when(wait_for(folder, "process_lost", number)) - killed)
        assert events(folder, "process_lost")[-1]["lost_process"] == rank
        back.append(when(wait_for(folder, "stepping", number + 1)) - killed)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(LIMIT_S) == 130
    record_promise(
        "R5",
        tries=tries,
        outcome=f"{sum(one < 1 for one in noticed)} of {tries} noticed in < 1 s "
        f"(longest {max(noticed):.2f} s), {len(back)} resumed; "
        f"kill to next step {statistics.median(back):.1f} s, median",
        seconds=time.monotonic() - began,
        noticed_s=noticed,
        kill_to_step_s=back,
        load_average_1min=os.getloadavg()[0],
    )


def kill_supervisors(folder: Path, tries: int) -> None:
    began, ended = time.monotonic(), []
    before = len(events(folder, "stepping"))
    for number in range(1, tries + 1):
        supervisor = start(folder)
        wait_for(folder, "stepping", before + number)
        pids = events(folder, "processes_started")[-1]["pids"]
        assert all(map(is_alive, pids))
        supervisor.kill()
        supervisor.wait()
        killed = time.monotonic()
        while any(map(is_alive, pids)) and time.monotonic() < killed + 10:
            time.sleep(0.005)
        ended.append(time.monotonic() - killed)
    record_promise(
        "R19",
        tries=tries,
        outcome=f"{sum(one < 1 for one in ended)} of {tries} left no trainer after 1 s "
        f"(longest {max(ended):.2f} s); each next supervisor resumed",
        seconds=time.monotonic() - began,
        ended_s=ended,
        load_average_1min=os.getloadavg()[0],
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--trainers", type=int, default=50)
    parser.add_argument("--supervisors", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        write_experiment(Path(name))
        kill_trainers(Path(name), given.trainers)
        kill_supervisors(Path(name), given.supervisors)
