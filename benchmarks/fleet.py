"""What each mechanism of recovery is worth in a fleet: a simulation, checked against a real run.

    python benchmarks/fleet.py [--chips 32768] [--days 60] [--check 300]

A synchronous run alternates between work and the time after a failure: until it is noticed, until
processes and hosts are there again, and the work since the last step that was kept. Failures come
at the published rate of 16,384 GPUs in 54 days of training (Llama 3, arXiv:2407.21783): 419
unexpected ones, 78 % of them with hardware at fault, which needs another host.

`--check` runs two processes of `tiny` under a supervisor for so many seconds, kills them as often
as the simulation is given, and compares the goodput of both.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from _record import record

sys.path.append(str(Path(__file__).parent / "reliability"))

CHIP_HOURS_A_FAILURE = 16_384 * 54 * 24 / 419
NEEDS_A_HOST = 0.78
"""The share of failures with hardware confirmed or suspected at fault, ibid."""
HANGS = 0.1
"""The share of failures that end no process. An assumption: no public count distinguishes them."""


class Fleet(NamedTuple):
    """A run and its machinery; times in seconds.

    Times that depend on the size of the model are assumptions for a large one, named in the result:
    those that axcore measured are of a small model.
    """

    chips: int
    save_every_s: float
    save_stops_s: float
    """How long a save holds up the steps."""
    noticed_s: float
    hang_noticed_s: float
    restart_s: float
    """From a failure that is noticed until the state is restored and steps begin."""
    new_host_s: float
    """Until a lost host is replaced."""
    failures_in_one: float = CHIP_HOURS_A_FAILURE


class Goodput(NamedTuple):
    """How the time of a run went, as shares of it."""

    useful: float
    saving: float
    lost_work: float
    noticing: float
    restarting: float


def simulate(fleet: Fleet, days: float, seed: int = 0) -> Goodput:
    """Return what became of the time of a run."""
    draw, end = random.Random(seed), days * 86_400
    every_s = fleet.failures_in_one * 3600 / fleet.chips
    useful = saving = lost = noticing = restarting = 0.0
    now = 0.0
    cycle = fleet.save_every_s + fleet.save_stops_s
    while now < end:
        worked = min(draw.expovariate(1 / every_s), end - now)
        saves, rest = divmod(worked, cycle)
        useful += saves * fleet.save_every_s
        saving += saves * fleet.save_stops_s
        now += worked
        if now >= end:
            useful += rest
            break
        lost += rest
        noticed = fleet.hang_noticed_s if draw.random() < HANGS else fleet.noticed_s
        noticing += noticed
        down = fleet.restart_s + (fleet.new_host_s if draw.random() < NEEDS_A_HOST else 0.0)
        # Hosts fail while they start as well, and then all start again.
        while (until := draw.expovariate(1 / every_s)) < down:
            restarting += until
            now += until
        restarting += down
        now += noticed + down
    return Goodput(*(part / now for part in (useful, saving, lost, noticing, restarting)))


def ladder(chips: int) -> dict[str, Fleet]:
    """Return what a run loses with one mechanism more in each row."""
    alone = Fleet(
        chips=chips,
        save_every_s=1800.0,
        save_stops_s=30.0,  # all of 1 TB or so goes to storage while no step is made
        noticed_s=100.0,  # jax's heartbeat
        hang_noticed_s=1800.0,  # somebody looks, or a barrier ends
        restart_s=600.0,  # an engine starts all, which import, compile, and read the checkpoint
        new_host_s=900.0,
    )
    background = alone._replace(save_every_s=600.0, save_stops_s=2.0)
    # The supervisor's own reaction was measured (R5, R7): 0.14 s for a death, the limit for a hang.
    agents = background._replace(noticed_s=0.14, hang_noticed_s=300.0, restart_s=300.0)
    kept_steps = agents._replace(restart_s=120.0)  # neither imports nor compiles; it reads
    spares = kept_steps._replace(new_host_s=0.0)
    snapshots = spares._replace(save_every_s=60.0, save_stops_s=0.5, restart_s=30.0)
    return {
        "checkpoints, and an engine that starts all again": alone,
        "+ saves in the background, more often": background,
        "+ agents that restart within the job": agents,
        "+ compiled steps and standby workers": kept_steps,
        "+ spare hosts": spares,
        "+ snapshots in host memory": snapshots,
    }


# -- Beside a real run -----------------------------------------------------------------------------


def checked(seconds: float, every_s: float) -> dict[str, float]:
    """Return the goodput of a real run that is killed, and of a simulation with its times."""
    from supervised_kills import events, start, wait_for, when, write_experiment

    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        write_experiment(folder)
        supervisor = start(folder, "--policy", "standby_workers=false")
        wait_for(folder, "stepping", 1)
        began, draw = time.time(), random.Random(0)
        kills: list[float] = []
        while time.time() - began < seconds:
            time.sleep(draw.expovariate(1 / every_s))
            kills.append(time.time())
            pids = events(folder, "processes_started")[-1]["pids"]
            os.kill(pids[draw.randrange(2)], signal.SIGKILL)
            wait_for(folder, "stepping", len(kills) + 1)
        ended = time.time()
        supervisor.send_signal(signal.SIGTERM)
        supervisor.wait(300)
        stepping = [when(one) for one in events(folder, "stepping")]
        lost = [when(one) for one in events(folder, "process_lost")]
        metrics = [json.loads(line) for line in (folder / "run/metrics.jsonl").open()]
        newest = max(one["step"] for one in metrics)
    down = [again - killed for again, killed in zip(stepping[1:], kills, strict=True)]
    up = [killed - at for killed, at in zip(kills, stepping, strict=False)]
    # Steps that are in the run at its end, each of which took as long as any other.
    step_s = typical_step_s(metrics)
    real = newest * step_s / (ended - began)
    fleet = Fleet(
        chips=1,
        save_every_s=10 * step_s,
        # What ten steps take beyond those: a save, a log line, and the reading of data.
        save_stops_s=10 * (wall_step_s(metrics) - step_s),
        noticed_s=statistics.mean(a - b for a, b in zip(lost, kills, strict=True)),
        hang_noticed_s=0.0,
        restart_s=statistics.mean(down),
        new_host_s=0.0,
        failures_in_one=statistics.mean(up) / 3600,
    )
    return {
        "seconds": round(ended - began, 1),
        "kills": len(kills),
        "restart_s": round(fleet.restart_s, 2),
        "step_s": round(step_s, 4),
        "real": round(real, 4),
        "simulated": round(simulate(fleet, days=10).useful, 4),
    }


def typical_step_s(metrics: list[dict[str, float]]) -> float:
    """Return the median time of a step."""
    return statistics.median(one["step_time_s"] for one in metrics if one["split"] == "train")


def wall_step_s(metrics: list[dict[str, float]]) -> float:
    """Return the median time of a step by the clock, with all that comes between steps."""
    return statistics.median(
        one["step_time_s"] * one["tokens_per_s"] / one["wall_clock_tokens_per_s"]
        for one in metrics
        if one["split"] == "train" and one.get("wall_clock_tokens_per_s")
    )


def main() -> None:
    """Simulate, check, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chips", type=int, default=32_768)
    parser.add_argument("--days", type=float, default=60.0)
    parser.add_argument("--check", type=float, default=300.0, help="Seconds; 0 checks nothing.")
    parser.add_argument("--every", type=float, default=12.0, help="Seconds between kills.")
    given = parser.parse_args()
    rows = {}
    for name, fleet in ladder(given.chips).items():
        found = [simulate(fleet, given.days, seed) for seed in range(20)]
        mean = Goodput(*map(statistics.mean, zip(*found, strict=True)))
        rows[name] = {
            **{key: round(value, 4) for key, value in mean._asdict().items()},
            "times": fleet._asdict(),
        }
        print(f"{mean.useful:7.1%}  {name}")
    check = checked(given.check, given.every) if given.check else None
    print(check)
    record("fleet", {"chips": given.chips, "days": given.days, "rows": rows, "check": check})


if __name__ == "__main__":
    main()
