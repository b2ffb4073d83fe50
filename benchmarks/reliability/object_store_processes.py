"""R24: kills of one of several processes that keep steps in an object store, without a shared disk.

    nice python benchmarks/reliability/object_store_processes.py [--kills 100]

moto's S3 server runs here, behind a proxy. In each round 2 or 4 processes, each with an empty disk
of its own, restore the newest step, compare it with what was saved, and save two more; one is
killed in a phase of that, and then the others. The next round has to find the newest step that the
processes knew to be committed, or the one after it. In every second round the store loses or
throttles 2 % of all requests. Every second restore is a single replica restore.
"""

import argparse
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from _paths import TESTS
from _result import record_promise
from object_server import environment, faulty_proxy, new_bucket, object_server

sys.path.append(str(TESTS / "checkpoint"))

from several_processes import finish
from store_processes import lines_of, names_of, start

LIMIT_S = 240
LOST = 0.02
KINDS = ("busy", "cut upload", "cut answer")
DEVICES = 4


class Phase(NamedTuple):
    """When a process is killed: at a request that is served or not, or before a file operation.

    In texts, `{who}` is the process and `{step}` the second step of the round.
    """

    name: str
    request: str = ""
    is_served: bool = False
    before: tuple[str, str] = ("", "")
    is_of_first: bool = False


STEP = r"/step_{step:08d}-\w+"
PHASES = (
    Phase("restore: reading", r"GET .*/arrays/.*", is_served=True),
    Phase("restore: receiving", before=("open", "/manifest.ocdbt")),
    Phase("stage", before=("os.mkdir", "arrays/process_{who}")),
    Phase("upload: before a piece", rf"PUT .*{STEP}/arrays/process_{{who}}/d/.*"),
    Phase("upload: after a piece", rf"PUT .*{STEP}/arrays/process_{{who}}/.*", is_served=True),
    Phase("read back", rf"GET .*{STEP}/arrays/process_{{who}}/.*", is_served=True),
    Phase("local manifest", before=("os.rename", "manifest.json"), is_of_first=True),
    Phase("upload: before the manifest", rf"PUT .*{STEP}/manifest.json"),
    Phase("upload: after the manifest", rf"PUT .*{STEP}/manifest.json", is_served=True),
    Phase("commit: before the index", rf"PUT .*{STEP}\.json"),
    Phase("commit: after the index", rf"PUT .*{STEP}\.json", is_served=True),
    Phase("retention", r"POST .*delete.*"),
)


class Round(NamedTuple):
    """One kill, and what was wrong in the round: nothing, or a sentence."""

    phase: str
    processes: int
    loses_requests: bool
    problem: str | None


class Chain:
    """Rounds of one run: each continues what the one before it left in the store."""

    def __init__(self, proxy: Any, scratch: Path) -> None:
        self.proxy, self.scratch, self.saved = proxy, scratch, 0
        self.is_killed = False
        self._numbers = itertools.count()

    def round(self, phase: Phase | None, count: int, *, loses: bool) -> str | None:
        """Run processes until one is killed, or until they end; return what is wrong."""
        number = next(self._numbers)
        chance = random.Random(number)
        first, second = self.saved + 2, self.saved + 3
        # Where there are replicas, only the first two of four processes write what is in `w`.
        of_writer = phase is not None and "{who}" in phase.request + phase.before[1]
        who = 0 if phase and phase.is_of_first else chance.randrange(2 if of_writer else count)
        task: dict[str, Any] = {"piece bytes": 16384, "keep": 2, "restores": self.saved > 0}
        task["single replica"] = bool(number % 2)
        if phase and phase.before[0]:
            # Files are opened for writing from the restore on, directories made for a save.
            at = "restore" if phase.name.startswith("restore") else second
            task |= {"dies at": at, "who": who}
            task["before"] = [text.format(who=who, step=second) for text in phase.before]
        armed = threading.Event()
        self.proxy.fault = self._fault(
            phase, who, second, lambda: processes[who], armed, chance if loses else None
        )
        processes = start(
            self.proxy, self.scratch / str(number), first, second, count=count,
            devices=DEVICES // count, more={"REPLICAS": str(1 + number % 2)}, **task,
        )  # fmt: skip
        armed.set()
        return self._end(processes, who, is_killed=phase is not None)

    def _fault(
        self,
        phase: Phase | None,
        who: int,
        step: int,
        victim: Callable[[], Any],
        armed: threading.Event,
        chance: random.Random | None,
    ) -> Callable[[str, str], Any]:
        pattern = re.compile(phase.request.format(who=who, step=step)) if phase else None

        def fault(method: str, path: str) -> Any:
            if pattern and pattern.pattern and pattern.fullmatch(f"{method} {path}"):
                armed.wait()
                if phase and phase.is_served:
                    return victim().kill
                victim().kill()
                return "cut upload" if method != "GET" else "cut answer"
            if chance and chance.random() < LOST:
                return chance.choice(KINDS)
            return None

        return fault

    def _end(self, processes: list[Any], who: int, *, is_killed: bool) -> str | None:
        problems, ended = [], {}
        try:
            ended[who] = finish(processes[who], LIMIT_S)
        except subprocess.TimeoutExpired:
            problems.append(f"process {who} did not end in {LIMIT_S} s")
        if is_killed:
            time.sleep(0.5)
            for one in processes:
                one.kill()
        self.proxy.fault = lambda method, path: None
        for index, one in enumerate(processes):
            ended.setdefault(index, finish(one, LIMIT_S))
        self.is_killed = ended[who].exit_code == -signal.SIGKILL
        if ended[who].exit_code != 0 and not (is_killed and self.is_killed):
            what = (ended[who].stdout + ended[who].stderr)[-300:]
            problems.append(f"process {who} ended with {ended[who].exit_code}: {what}")
        lines = [line for one in ended.values() for line in lines_of(one)]
        before = self.saved
        for line in lines:
            if "is right" in line:
                problems += self._problems_of(line, before)
            elif line["error"]:
                problems.append(f"step {line['step']}: {line['error']}")
            else:
                self.saved = max(self.saved, line["step"])
        if before and not any("is right" in line for line in lines) and not is_killed:
            problems.append("nothing was restored")
        return "; ".join(problems) or None

    def _problems_of(self, restored: dict[str, Any], saved: int) -> list[str]:
        problems = [f"a warning: {one}" for one in restored["warnings"]]
        if restored["step"] not in (saved, saved + 1):
            problems.append(f"step {restored['step']} was restored, {saved} was saved")
        if not restored["is right"] or restored["extra"] != {"step": restored["step"]}:
            problems.append(f"step {restored['step']} has other values")
        return problems

    def leftovers(self) -> list[str]:
        """Return what belongs to no step, once a round ended well."""
        prefixes = {name.split("/")[1] for name in names_of(self.proxy) if "step_" in name}
        steps = {name.removesuffix(".json") for name in prefixes if name.endswith(".json")}
        return sorted(name for name in prefixes if name.removesuffix(".json") not in steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    wanted, began, rounds = parser.parse_args().kills, time.monotonic(), []
    with (
        object_server() as (port, _),
        faulty_proxy(port) as proxy,
        tempfile.TemporaryDirectory() as scratch,
    ):
        os.environ.update(environment(proxy.server_port))
        proxy.bucket = new_bucket(port)
        chain = Chain(proxy, Path(scratch))
        problems = [chain.round(None, 2, loses=False)]
        num_missed = 0
        while len(rounds) < wanted:
            number = len(rounds)
            phase, turn = PHASES[number % len(PHASES)], number // len(PHASES)
            # Each phase in turn with 2 and 4 processes, and with and without faults.
            count, loses = (2, 4)[turn % 2], bool((number + turn // 2) % 2)
            problem = chain.round(phase, count, loses=loses)
            if not chain.is_killed and problem is None:
                # The process wrote nothing in this phase, so that nothing killed it: once more.
                num_missed += 1
                continue
            rounds.append(Round(phase.name, count, loses, problem))
            print(number, f"{time.monotonic() - began:.0f} s", rounds[-1], flush=True)
        problems.append(chain.round(None, 2, loses=False))
        left = chain.leftovers()
        if left:
            problems.append(f"left over: {left}")
    problems += [f"{one.phase}: {one.problem}" for one in rounds if one.problem]
    problems = [one for one in problems if one]
    good = sum(one.problem is None for one in rounds)
    outcome = (
        f"{good} of {wanted} kills in {len(PHASES)} phases lost no step, over 2 and 4 processes; "
        f"{sum(one.loses_requests for one in rounds)} of them while 2 % of requests were lost"
    )
    print(outcome, problems)
    record_promise(
        "R24",
        tries=wanted,
        outcome=outcome,
        seconds=time.monotonic() - began,
        problems=problems,
        rounds_without_a_kill=num_missed,
        server="moto",
        kills=[one._asdict() for one in rounds],
    )
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
