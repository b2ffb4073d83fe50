"""R22: kills processes, hosts and leaders of a run that agents supervise over hosts.

`python benchmarks/reliability/agents.py --kills 30`. Three agents of this machine know one another
by TCP alone; two of them train, and one is a spare. Each kill comes at a random moment of the
seconds after the processes make steps again. A killed agent starts again once they do.

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
from typing import NamedTuple

import _paths  # noqa: F401 - first
from _result import record_promise
from quick_flags import compile_cache, quick_environment
from supervised_kills import LIMIT_S, POLICY, events, wait_for, when, write_experiment

from axcore.launch.local import free_port

HOSTS, WANTED = 3, 2
LONGEST_WAIT_S = 5.0
KINDS = ("process", "host", "leader")


class Kill(NamedTuple):
    """One kill: of what, and how long until the next step."""

    kind: str
    rank: int
    to_step_s: float


class Fleet:
    """Agents of one run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._address = f"localhost:{free_port()}"
        self.agents = {rank: self._start(rank) for rank in range(HOSTS)}

    def _start(self, rank: int) -> "subprocess.Popen[bytes]":
        place = {
            "AXCORE_COORDINATOR": self._address,
            "AXCORE_NUM_PROCESSES": str(HOSTS),
            "AXCORE_PROCESS_ID": str(rank),
            "AXCORE_LAUNCH_SECRET": "of this benchmark alone",
        }
        words = ("agent", self._folder / "small.json", "-n", WANTED, "--dir", self._folder / "run")
        with (self._folder / f"out{rank}").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "axcore", *map(str, words), *POLICY],
                env={**quick_environment(), **compile_cache(self._folder / "compiled"), **place},
                stdout=out,
                stderr=out,
            )

    def restart(self, rank: int) -> None:
        self.agents[rank].wait()
        self.agents[rank] = self._start(rank)

    def leader(self) -> int:
        changes = events(self._folder, "leader_changed")
        return changes[-1]["host"] if changes else 0

    def follower(self) -> int:
        """Return a host that trains and does not lead."""
        pids = events(self._folder, "processes_started")[-1]["pids"]
        parents = {
            int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in pids
        }
        training = [rank for rank, agent in self.agents.items() if agent.pid in parents]
        return next(rank for rank in training if rank != self.leader())

    def end(self) -> None:
        for agent in self.agents.values():
            agent.kill()
            agent.wait()


def kill(fleet: Fleet, folder: Path, kind: str) -> int:
    """Kill something of a kind; return its number."""
    pids = events(folder, "processes_started")[-1]["pids"]
    if kind == "process":
        rank = random.SystemRandom().randrange(WANTED)
        os.kill(pids[rank], signal.SIGKILL)
        return rank
    rank = fleet.leader() if kind == "leader" else fleet.follower()
    fleet.agents[rank].kill()
    return rank


def one_kill(fleet: Fleet, folder: Path, kind: str) -> Kill:
    stepping = len(events(folder, "stepping"))
    time.sleep(random.SystemRandom().uniform(0, LONGEST_WAIT_S))
    killed = time.time()
    rank = kill(fleet, folder, kind)
    back = wait_for(folder, "stepping", stepping + 1)
    if kind != "process":
        fleet.restart(rank)
        time.sleep(LONGEST_WAIT_S)  # it joins again
    return Kill(kind, rank, when(back) - killed)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=30)
    tries = parser.parse_args().kills
    began, kills = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        write_experiment(folder)
        fleet = Fleet(folder)
        try:
            wait_for(folder, "stepping", 1)
            for number in range(tries):
                kills.append(one_kill(fleet, folder, KINDS[number % len(KINDS)]))
                print(kills[-1], flush=True)
            for agent in fleet.agents.values():
                agent.send_signal(signal.SIGTERM)
            codes = {rank: agent.wait(LIMIT_S) for rank, agent in fleet.agents.items()}
        finally:
            fleet.end()
    times = {kind: [one.to_step_s for one in kills if one.kind == kind] for kind in KINDS}
    text = "; ".join(
        f"{len(found)} of a {kind}: next step after {statistics.median(found):.1f} s in the "
        f"median, {max(found):.1f} s at most"
        for kind, found in times.items()
        if found
    )
    load = f"load average {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"
    all_ended = set(codes.values()) == {130}
    outcome = f"{len(kills)} of {tries} kills survived: {text}; {load}"
    record_promise(
        "R22",
        tries=tries,
        outcome=outcome,
        seconds=time.monotonic() - began,
        kills=[one._asdict() for one in kills],
        exit_codes=codes,
    )
    print(outcome)
    sys.exit(not all_ended)


if __name__ == "__main__":
    main()
