"""R17: kills, 503s and cut connections while steps are uploaded; no committed step is lost.

    python benchmarks/reliability/object_store.py [--every 1] [--passing 60] [--outages 6]

moto's S3 server runs here, behind a proxy. A process that saves steps is killed at its k-th request
to the store, for every k-th of a full run, before the request is served or after. After each kill
another machine, with an empty disk, must find every step whole that the process knew to be in the
store, and save more. Then faults that pass must cost nothing, and outages no step.

Its default form takes about 60 minutes on two cores.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax.numpy as jnp
import numpy as np
from _paths import TESTS  # noqa: F401
from _result import record_promise
from object_server import environment, faulty_proxy, new_bucket, object_server

from axcore.checkpoint import Checkpointer
from axcore.errors import CheckpointError

KINDS = ("busy", "cut upload", "cut answer")


def state_of(step: int) -> dict[str, Any]:
    values = np.random.default_rng(step).standard_normal((64, 64), dtype=np.float32)
    return {"w": jnp.asarray(values), "step": jnp.int32(step)}


def save_steps(directory: str) -> None:
    """Save steps 1, 2 and 3, keeping one; prints each once it is in the store."""
    with Checkpointer.Config(keep=1).build(directory=directory) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, state_of(step), {"step": step})
            checkpoints.wait()
            os.write(1, f"{step}\n".encode())


class Bench:
    """A proxy, and a new bucket and new machines for every try."""

    def __init__(self, proxy: Any, scratch: Path) -> None:
        self.proxy, self.scratch, self.tries = proxy, scratch, 0

    def new(self) -> Callable[[str], str]:
        """Return a function from the name of a machine to its checkpoint directory."""
        self.tries += 1
        self.proxy.fault = lambda method, path: None
        folder, bucket = self.scratch / str(self.tries), new_bucket(self.proxy.target)
        return lambda machine: f"s3://{bucket}/run?staging={folder / machine}"

    def kill_at(self, number: int) -> tuple[bool, str | None]:
        """Kill at a request; returns whether there was one of that number, and what is wrong."""
        directory, count = self.new(), 0

        def fault(method: str, path: str) -> Any:
            nonlocal count
            count += 1
            if count != number:
                return None
            if number % 2:
                return worker.kill  # when it was served
            worker.kill()
            return "cut upload"

        self.proxy.fault = fault
        worker = subprocess.Popen(
            [sys.executable, __file__, "--child", directory("a")], stdout=subprocess.PIPE, text=True
        )
        out, _ = worker.communicate()
        self.proxy.fault = lambda method, path: None
        if worker.returncode == -signal.SIGKILL:
            return True, problem_of(directory("b"), saved=max(map(int, out.split()), default=0))
        assert worker.returncode == 0, worker.returncode
        return False, None

    def passing(self, number: int) -> str | None:
        """Let three requests in a row fail, a different place each time."""
        directory, kind, first = self.new(), KINDS[number % len(KINDS)], 3 + number
        self.proxy.fault = failing(kind, range(first, first + 3))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            save_one(directory("a"), 1)
        if caught:
            return f"a warning: {caught[0].message}"
        return problem_of(directory("b"), saved=1)

    def outage(self, number: int) -> str | None:
        """Let every request fail while step 2 is uploaded, until the save gives up."""
        directory = self.new()
        with (
            warnings.catch_warnings(),
            Checkpointer.Config(tries=2).build(directory=directory("a")) as checkpoints,
        ):
            warnings.simplefilter("ignore")
            checkpoints.save(1, state_of(1), {"step": 1})
            checkpoints.wait()
            self.proxy.fault = failing(KINDS[number % len(KINDS)], range(10**9))
            checkpoints.save(2, state_of(2), {"step": 2})
            try:
                checkpoints.wait()
                return "no error"
            except CheckpointError:
                self.proxy.fault = lambda method, path: None
        save_one(directory("a"), 3)  # uploads step 2, too
        kept = Checkpointer.Config().build(directory=directory("c")).steps()
        return (
            problem_of(directory("b"), saved=3) if kept == (1, 2, 3) else f"steps {kept} are left"
        )


def failing(kind: str, requests: range) -> Callable[[str, str], str | None]:
    count = 0

    def fault(method: str, path: str) -> str | None:
        nonlocal count
        count += 1
        return kind if count in requests else None

    return fault


def save_one(directory: str, step: int) -> None:
    with Checkpointer.Config().build(directory=directory) as checkpoints:
        checkpoints.save(step, state_of(step), {"step": step})


def problem_of(directory: str, saved: int) -> str | None:
    """Return what is wrong with what a new machine finds."""
    checkpoints = Checkpointer.Config().build(directory=directory)
    steps = checkpoints.steps()
    if max(steps, default=0) not in (saved, saved + 1):
        return f"the newest of {steps} is not {saved} or {saved + 1}"
    for step in steps:
        restored = checkpoints.restore(state_of(0), step=step)
        if not np.array_equal(restored.state["w"], state_of(step)["w"]):
            return f"step {step} has other values"
    save_one(directory, max(steps, default=0) + 1)
    return None


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        return save_steps(sys.argv[2])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="requests between two kills")
    parser.add_argument("--passing", type=int, default=60)
    parser.add_argument("--outages", type=int, default=6)
    options = parser.parse_args()
    began, found = time.monotonic(), {"kills": [], "passing": [], "outages": []}
    with (
        object_server() as (port, _),
        faulty_proxy(port) as proxy,
        tempfile.TemporaryDirectory() as scratch,
    ):
        os.environ.update(environment(proxy.server_port))
        bench, number = Bench(proxy, Path(scratch)), 1
        while (killed := bench.kill_at(number))[0]:
            found["kills"].append(killed[1])
            number += options.every
        found["passing"] = [bench.passing(number) for number in range(options.passing)]
        os.environ["AWS_MAX_ATTEMPTS"] = "1"  # the driver gives up sooner
        found["outages"] = [bench.outage(number) for number in range(options.outages)]
    good = {name: f"{tries.count(None)} of {len(tries)}" for name, tries in found.items()}
    outcome = (
        f"{good['kills']} kills during requests lost no step, {good['passing']} faults that passed "
        f"cost nothing, {good['outages']} outages lost no step"
    )
    problems = [f"{name}: {one}" for name, tries in found.items() for one in tries if one]
    print(outcome, problems)
    num_tries, seconds = sum(map(len, found.values())), time.monotonic() - began
    record_promise(
        "R17", tries=num_tries, outcome=outcome, seconds=seconds, problems=problems, server="moto"
    )
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
