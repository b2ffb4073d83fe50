"""R7: hangs of six kinds in a supervised run of two processes, and what the supervisor does then.

`python benchmarks/reliability/hangs.py --rounds 5`. A round is one run that meets each kind once,
at a random process; a last run has no restart left and ends with exit code 12.

Its default form takes about 18 minutes on two cores.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import _paths  # noqa: F401 - first
from _result import record_promise
from quick_flags import compile_cache, quick_environment

from axcore.config import evolve, to_json
from axcore.resilience import read_events
from axcore.resilience.faults import (
    Fault,
    FaultPlan,
    Hang,
    HangAfterStep,
    HangInCallback,
    HangInSave,
    Signal,
)
from axcore.testing.tiny import small_experiment

LIMIT_S = 10.0
SAVE_EVERY = 5
POLICY = (
    f"beat_s={LIMIT_S}",
    f"step_s={LIMIT_S}",
    "step_factor=3",
    f'phase_s["save"]={LIMIT_S}',
)
KINDS = {
    "blocked data": Hang,
    "stuck collective": HangAfterStep,
    "SIGSTOP": Signal,
    "callback that sleeps": HangInCallback,
    "GIL held": Hang,
    "stuck save": HangInSave,
}
MORE = {"SIGSTOP": {"signal": "SIGSTOP"}, "GIL held": {"holds_gil": True}}


class Noticed(NamedTuple):
    """One hang as the supervisor saw it."""

    kind: str
    process: int
    named: int
    also_named: list[int]
    what: str
    seconds: float
    answered: int
    """Processes whose stacks are in the run directory."""


def fault(kind: str, number: int) -> Fault:
    at_step = 2 * SAVE_EVERY * number + 3
    process = random.SystemRandom().randrange(2)
    return KINDS[kind](at_step=at_step, process=process, **MORE.get(kind, {}))


def run_with(folder: Path, faults: Sequence[Fault], *policy: str) -> int:
    """Return the exit code of a supervised run that meets the faults."""
    cfg = small_experiment(folder / "text")
    steps = faults[-1].at_step + 2 * SAVE_EVERY
    changes = {"max_steps": steps, "eval_every_steps": steps}
    checkpoint = evolve(cfg.checkpoint, every_steps=SAVE_EVERY)
    guards = (FaultPlan.Config(faults=tuple(faults)),)
    path = folder / "small.json"
    path.write_text(to_json(evolve(cfg, checkpoint=checkpoint, guards=guards, **changes)))
    options = [f"--policy={one}" for one in (*POLICY, *policy)]
    command = ("launch", "local", path, "-n", "2", "--dir", folder / "run", *options)
    return subprocess.run(
        [sys.executable, "-m", "axcore", *map(str, command)],
        env={**quick_environment(), **compile_cache(folder.parent / "compiled")},
        stdout=subprocess.DEVNULL,
        check=False,
    ).returncode


def noticed(run: Path, kinds: Sequence[str]) -> Iterator[Noticed]:
    events = read_events(run).events
    struck = [one for one in events if one["event"] == "fault"]
    hangs = [one for one in events if one["event"] == "hang"]
    for kind, fault, hang in zip(kinds, struck, hangs, strict=True):
        files = sorted((run / hang["stacks"]).glob("process_*.txt"))
        yield Noticed(
            kind=kind,
            process=fault["process"],
            named=hang["lost_process"],
            also_named=hang["others"],
            what=hang["what"],
            seconds=round((when(hang) - when(fault)).total_seconds(), 2),
            answered=sum(map(is_stack, files)),
        )


def is_stack(file: Path) -> bool:
    return "(most recent call first)" in file.read_text()


def when(event: dict) -> datetime:
    return datetime.fromisoformat(event["time"])


def one_round(folder: Path) -> list[Noticed]:
    kinds = random.SystemRandom().sample(list(KINDS), len(KINDS))
    code = run_with(folder, [fault(kind, number) for number, kind in enumerate(kinds)])
    found = list(noticed(folder / "run", kinds))
    print(code, *found, sep="\n", flush=True)
    assert code == 0, code
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds, began, hangs = parser.parse_args().rounds, time.monotonic(), []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        for number in range(rounds):
            (Path(name) / str(number)).mkdir()
            hangs += one_round(Path(name) / str(number))
        (Path(name) / "last").mkdir()
        faults = [fault("blocked data", number) for number in (0, 1)]
        code = run_with(Path(name) / "last", faults, 'escalation["hung"][0].times=1')
    named = sum(one.named == one.process for one in hangs)
    record_promise(
        "R7",
        tries=len(hangs),
        outcome=f"{len(hangs)} of {len(hangs)} noticed, {max(one.seconds for one in hangs):.1f} s "
        f"after they began at most (limits of {LIMIT_S:g} s); the runs ended well; {named} with "
        f"the culprit named, {sum(one.answered == 2 for one in hangs)} with the stacks of both "
        f"processes; exit code {code} where no restart was left",
        seconds=time.monotonic() - began,
        hangs=[one._asdict() for one in hangs],
        load_average_1min=os.getloadavg()[0],
    )
