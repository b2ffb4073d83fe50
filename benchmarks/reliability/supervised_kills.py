"""R5, R12 and R19: kills trainers of a supervised run of two processes, and its supervisors.

`python benchmarks/reliability/supervised_kills.py --trainers 50 --without-spares 10 --supervisors
20`. Each kill comes at a random moment of the seconds after the processes make steps again, so that
some come before the spares are ready.

Its default form takes about 16 minutes on two cores.
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
from typing import NamedTuple

import _paths  # noqa: F401 - first
from _result import record_promise
from quick_flags import compile_cache, quick_environment

from axcore.config import evolve, to_json, update_config
from axcore.resilience import read_events
from axcore.resilience.this_machine import process_state
from axcore.testing.tiny import small_experiment

LIMIT_S = 300
LONGEST_WAIT_S = 15.0
POLICY = ("--policy", "attempts_at_one_step=1000000")
"""Kills from outside may come at one step again and again, before a checkpoint is saved."""


def write_experiment(folder: Path, **more: object) -> Path:
    cfg = update_config(small_experiment(folder / "text"), more)
    checkpoint = evolve(cfg.checkpoint, every_steps=10)
    changes = {"max_steps": 1_000_000, "eval_every_steps": 1_000_000, "checkpoint": checkpoint}
    path = folder / "small.json"
    path.write_text(to_json(evolve(cfg, **changes)), encoding="utf-8")
    return path


def start(folder: Path, *policy: str, processes: int = 2) -> "subprocess.Popen[bytes]":
    run = ("-n", processes, "--dir", folder / "run", *POLICY, *policy)
    return subprocess.Popen(
        [
            sys.executable,
            *map(str, ("-m", "axcore", "launch", "local", folder / "small.json", *run)),
        ],
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


class Kill(NamedTuple):
    """One kill of a trainer: how long until it was noticed, and until the next step."""

    rank: int
    noticed_s: float
    to_step_s: float
    ready_spares: int


def kill_trainers(folder: Path, tries: int, *policy: str) -> list[Kill]:
    before = len(events(folder, "stepping")), len(events(folder, "process_lost"))
    supervisor, kills = start(folder, *policy), []
    for number in range(1, tries + 1):
        wait_for(folder, "stepping", before[0] + number)
        time.sleep(random.SystemRandom().uniform(0, LONGEST_WAIT_S))
        rank = random.SystemRandom().randrange(2)
        killed = time.time()
        os.kill(events(folder, "processes_started")[-1]["pids"][rank], signal.SIGKILL)
        lost = wait_for(folder, "process_lost", before[1] + number)
        assert lost["lost_process"] == rank
        back = wait_for(folder, "stepping", before[0] + number + 1)
        spares = len(events(folder, "processes_started")[-1]["standby"])
        kills.append(Kill(rank, when(lost) - killed, when(back) - killed, spares))
        print(kills[-1], flush=True)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(LIMIT_S) == 130
    return kills


def median_to_step(kills: list[Kill]) -> str:
    times = sorted(one.to_step_s for one in kills)
    if not times:
        return "not measured"
    return f"{statistics.median(times):.1f} s in the median, {times[-1]:.1f} s at most"


def record_kills(kills: list[Kill], without: list[Kill], seconds: float) -> None:
    noticed = [one.noticed_s for one in kills]
    load = os.getloadavg()[0]
    busy = f"; load average {load:.0f} on {os.cpu_count()} cores"
    more = {"load_average_1min": load, "kills": [one._asdict() for one in kills]}
    record_promise(
        "R5",
        tries=len(kills),
        outcome=f"{sum(one < 1 for one in noticed)} of {len(kills)} noticed in < 1 s "
        f"(longest {max(noticed):.2f} s), all resumed; kill to next step, with loading "
        f"of the step: {median_to_step(kills)}{busy}",
        seconds=seconds,
        **more,
    )
    spared = [one for one in kills if one.ready_spares == 2]
    record_promise(
        "R12",
        tries=len(spared),
        outcome=f"{len(spared)} restarts from ready spares: kill to next step "
        f"{median_to_step(spared)}; {len(without)} without spares: {median_to_step(without)}"
        f"{busy}",
        seconds=seconds,
        **more,
        without_spares=[one._asdict() for one in without],
    )


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that live."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def kill_supervisors(folder: Path, tries: int) -> None:
    began, ended, counts = time.monotonic(), [], []
    before = len(events(folder, "stepping"))
    for number in range(1, tries + 1):
        supervisor = start(folder)
        wait_for(folder, "stepping", before + number)
        time.sleep(random.SystemRandom().uniform(0, LONGEST_WAIT_S))
        pids = children(supervisor.pid)
        assert set(events(folder, "processes_started")[-1]["pids"]) <= set(pids)
        supervisor.kill()
        supervisor.wait()
        killed = time.monotonic()
        while any(map(is_alive, pids)) and time.monotonic() < killed + 10:
            time.sleep(0.005)
        ended.append(time.monotonic() - killed)
        counts.append(len(pids))
        print(counts[-1], ended[-1], flush=True)
    record_promise(
        "R19",
        tries=tries,
        outcome=f"{sum(one < 1 for one in ended)} of {tries} left no trainer and no spare after "
        f"1 s (longest {max(ended):.2f} s); each next supervisor resumed",
        seconds=time.monotonic() - began,
        ended_s=ended,
        processes=counts,
        load_average_1min=os.getloadavg()[0],
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--trainers", type=int, default=50)
    parser.add_argument("--without-spares", type=int, default=10)
    parser.add_argument("--supervisors", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        write_experiment(Path(name))
        began = time.monotonic()
        killed = kill_trainers(Path(name), given.trainers)
        without = kill_trainers(
            Path(name), given.without_spares, "--policy", "standby_workers=false"
        )
        record_kills(killed, without, time.monotonic() - began)
        if given.supervisors:
            kill_supervisors(Path(name), given.supervisors)
