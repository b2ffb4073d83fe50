"""R8: flipped bits in one replica are noticed and its device is named; no alarm where none flipped.

A very small model trains on eight devices of this host, each with a replica. First many steps with
a check after each of them; then one random bit of a random parameter is flipped on a random
device, again and again, each time in a state that is intact otherwise.

    python benchmarks/reliability/corruption.py --steps 10000 --flips 100

Its default form takes about 8 minutes on two cores.
"""

import argparse
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import numpy as np
from _result import record_promise

from axcore.config import update_config
from axcore.errors import CorruptionError
from axcore.experiments.named import experiment
from axcore.resilience.corruption import CorruptionCheck
from axcore.resilience.faults import FlipBit
from axcore.trainer import Guard

SMALL = {
    "model.dim": 8,
    "model.decoder.stack.num_layers": 1,
    "**.num_heads": 1,
    "**.num_kv_heads": 1,
    "**.hidden_dim": 16,
    "data.seq_len": 16,
    "data.batch_size": 8,
    "data.validation_fraction": 0,
    "learner.schedule.warmup_steps": 10,
    "logging.every_steps": 100,
    "eval_every_steps": 10**9,
    "checkpoint.every_steps": 10**9,
    "mesh": {"data": 8},
}


def trainer_of(steps: int, *guards: Guard.Config) -> Any:
    cfg = update_config(experiment("tiny"), {**SMALL, "max_steps": steps, "guards": guards})
    return cfg.build()


def false_alarms(steps: int, folder: Path) -> tuple[Any, Any, str]:
    """Return the trainer, its last state, and what the check raised, if it did."""
    trainer = trainer_of(steps, CorruptionCheck.Config(every_steps=1))
    try:
        return trainer, trainer.run(folder / "run", quiet=True).state, ""
    except CorruptionError as error:
        return trainer, None, str(error)


def noticed(trainer: Any, state: Any, flips: int, folder: Path) -> tuple[int, int]:
    """Return how many flips were noticed, and how many with the right device's name."""
    rng = np.random.default_rng(0)
    guard = CorruptionCheck.Config().build()
    guard.on_start(trainer, folder)
    paths, _ = jax.tree.flatten_with_path(state.model)
    found = named = 0
    for step in range(flips):
        path, leaf = paths[rng.integers(len(paths))]
        device = int(rng.integers(8))
        flip = FlipBit(
            at_step=1,
            parameter=jax.tree_util.keystr(path, simple=True, separator="."),
            device=device,
            element=int(rng.integers(leaf.size)),
            bit=int(rng.integers(8 * leaf.dtype.itemsize)),
        )
        try:
            guard.on_save(step, flip.on_state(step, state))
        except CorruptionError as error:
            found += 1
            named += bool(re.match(rf"device {device} \(process 0\) contradicts", str(error)))
    return found, named


def check_seconds(trainer: Any, state: Any, folder: Path) -> float:
    guard = CorruptionCheck.Config().build()
    guard.on_start(trainer, folder)
    times = []
    for step in range(20):
        started = time.perf_counter()
        guard.on_save(step, state)
        times.append(time.perf_counter() - started)
    return float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--flips", type=int, default=100)
    arguments = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trainer, state, alarm = false_alarms(arguments.steps, folder)
        found, named = (0, 0) if alarm else noticed(trainer, state, arguments.flips, folder)
        seconds = 0.0 if alarm else check_seconds(trainer, state, folder)
    file = record_promise(
        "R8",
        tries=arguments.flips,
        outcome=f"{found} of {arguments.flips} flipped bits noticed, {named} with the device; "
        f"{1 if alarm else 0} false alarms in {arguments.steps} steps",
        seconds=time.perf_counter() - started,
        seconds_of_a_check=seconds,
        alarm=alarm,
    )
    print(file.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
