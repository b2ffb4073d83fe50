"""R3: wherever a writer is killed, the newest step is whole: the last committed, or the one before.

    python benchmarks/reliability/crash_points.py [EVERY]

A process saves steps 1, 2 and 3, keeping one, and kills itself just before its k-th change of a
file; another try takes k + EVERY, until a process lives to its end. After each the newest step must
verify and hold, bit by bit, what was saved, and be no older than what the process knew to be saved.

Its default form takes about 18 minutes on two cores.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax.numpy as jnp
import numpy as np
from _result import record_promise

from axcore.checkpoint import Checkpointer

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate"}
STEPS = (1, 2, 3)


def state_of(step: int) -> dict[str, Any]:
    values = np.random.default_rng(step).standard_normal((64, 64), dtype=np.float32)
    return {"w": jnp.asarray(values), "step": jnp.int32(step)}


def die_before_change(number: int) -> None:
    """Kill this process before its change of that number, in whichever thread it is made."""
    left, lock = [number], threading.Lock()

    def hook(event: str, args: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_CREAT | os.O_RDWR)
        if event in CHANGES or writes:
            with lock:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def save_and_die(directory: str, number: int) -> None:
    with Checkpointer.Config(keep=1).build(directory=directory) as checkpoints:
        checkpoints.save(0, state_of(0), {"step": 0})
        checkpoints.wait()
        die_before_change(number)
        for step in STEPS:
            checkpoints.save(step, state_of(step), {"step": step})
            checkpoints.wait()
            os.write(1, f"saved {step}\n".encode())
    os._exit(0)


def problem_of(directory: str, saved: int) -> str | None:
    """Return what is wrong with what a killed process left."""
    checkpoints = Checkpointer.Config().build(directory=directory)
    for step in checkpoints.steps():
        checkpoints.verify(step)
    restored = checkpoints.restore(state_of(0))
    wanted = state_of(restored.step)
    if not np.array_equal(restored.state["w"], wanted["w"]):
        return f"step {restored.step} has other values"
    if restored.step not in (saved, saved + 1):
        return f"step {restored.step} is the newest; step {saved} was saved"
    return None


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        return save_and_die(sys.argv[2], int(sys.argv[3]))
    every = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    started, problems, number, tries = time.perf_counter(), [], 1, 0
    while True:
        with tempfile.TemporaryDirectory() as directory:
            child = subprocess.run(
                [sys.executable, __file__, "--child", directory, str(number)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if child.returncode != -signal.SIGKILL:
                assert child.returncode == 0, child.stderr
                break
            tries += 1
            saved = max((int(line.split()[1]) for line in child.stdout.splitlines()), default=0)
            if found := problem_of(directory, saved):
                problems.append(f"change {number}: {found}")
        number += every
    outcome = (
        f"{tries - len(problems)} of {tries} kills left the last step or the one before, whole"
    )
    print(outcome, problems)
    seconds = time.perf_counter() - started
    record_promise(
        "R3", tries=tries, outcome=outcome, seconds=seconds, every=every, problems=problems
    )
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
