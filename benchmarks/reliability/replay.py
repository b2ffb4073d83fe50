"""R23: a device that computes wrongly is named where nothing has a replica, and none without cause.

A very small model trains fully sharded on eight devices of this host. First many steps, each of
them replayed. Then a random device goes wrong at every run of the gradients until the replay has
ended: it flips a random bit of a random gradient that it holds, or of a token that it reads, which
spreads to all gradients. Then a random bit of the state flips at rest. Last, the time of a replay
is compared with that of a step, for a model whose steps are longer, in turns in one process.

    python benchmarks/reliability/replay.py --steps 2000 --flips 100 --pairs 30

Its default form takes about 6 minutes on two cores.
"""

import argparse
import os
import re
import tempfile
import time
from collections.abc import Callable
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
from axcore.resilience import replay
from axcore.resilience.faults import FlipBit
from axcore.resilience.replay import ReplayCheck
from axcore.trainer import Guard

NUM_DEVICES = 8
SMALL = {
    "model.dim": 8,
    "model.decoder.stack.num_layers": 1,
    "**.num_heads": 1,
    "**.num_kv_heads": 1,
    "**.hidden_dim": 16,
    "data.seq_len": 16,
}
SHARDED = {
    "data.batch_size": NUM_DEVICES,
    "data.validation_fraction": 0,
    "learner.schedule.warmup_steps": 10,
    "logging.every_steps": 100,
    "eval_every_steps": 10**9,
    "checkpoint.every_steps": 10**9,
    "mesh": {"fsdp": NUM_DEVICES},
}


def trainer_of(steps: int, *guards: Guard.Config, **changes: Any) -> Any:
    changes = {**SHARDED, **changes, "max_steps": steps, "guards": guards}
    return update_config(experiment("tiny"), changes).build()


def random_flip(rng: np.random.Generator, leaf: Any, bits: int, name: str = "") -> FlipBit:
    """Return a flip of a bit of one device's part of an array."""
    size = int(np.prod(leaf.sharding.shard_shape(leaf.shape)))
    return FlipBit(
        at_step=1,
        parameter=name,
        device=int(rng.integers(NUM_DEVICES)),
        element=int(rng.integers(size)),
        bit=int(rng.integers(bits)),
    )


class Fault:
    """What goes wrong in each run of the gradients: nothing, until something is set."""

    def __init__(self) -> None:
        self.tokens: FlipBit | None = None
        self.gradient: tuple[int, FlipBit] | None = None
        self._made: dict[Any, Any] = {}
        self._make = replay._Gradients

    def gradients(self, trainer: Any, order: Any) -> Any:
        """Take the place of the class; make each program once, which the search makes again."""
        if order not in self._made:
            self._made[order] = made = self._make(trainer, order)
            made.program = self._striking(made.program)
        return self._made[order]

    def _striking(self, program: Callable[..., Any]) -> Callable[..., Any]:
        def run(model: Any, batch: Any, step: Any) -> Any:
            if self.tokens is not None:
                batch = {**batch, "tokens": self.tokens.flipped(batch["tokens"])}
            gradients, loss = program(model, batch, step)
            if self.gradient is not None:
                at, flip = self.gradient
                leaves, tree = jax.tree.flatten(gradients)
                leaves[at] = flip.flipped(leaves[at])
                gradients = jax.tree.unflatten(tree, leaves)
            return gradients, loss

        return run


def false_alarms(steps: int, folder: Path) -> tuple[Any, Any, str]:
    """Return the trainer, its last state, and what the check raised, if it did."""
    trainer = trainer_of(steps, ReplayCheck.Config(every_steps=1), **SMALL)
    try:
        return trainer, trainer.run(folder / "run", quiet=True).state, ""
    except CorruptionError as error:
        return trainer, None, str(error)


def computing_wrongly(trainer: Any, state: Any, flips: int, folder: Path) -> tuple[int, int]:
    """Return how many faults of a device were found, and how many with its name."""
    rng, fault = np.random.default_rng(0), Fault()
    replay._Gradients = fault.gradients  # type: ignore[assignment,misc]
    guard = ReplayCheck.Config(every_steps=1).build()
    guard.on_start(trainer, folder)
    batch = next(trainer.train_batches())
    trained = jax.tree.leaves(trainer.step.trained_part(state.model))
    tokens = trainer.compiler.batch.abstract()["tokens"]
    found = named = 0
    for number in range(flips):
        fault.tokens = fault.gradient = None
        one_step(guard, 2 * number + 1, state, batch)
        if number % 2:
            flip = fault.tokens = random_flip(rng, tokens, bits=8)
        else:
            at = int(rng.integers(len(trained)))
            flip = random_flip(rng, trained[at], bits=8 * trained[at].dtype.itemsize)
            fault.gradient = (at, flip)
        try:
            one_step(guard, 2 * number + 2, state, batch)
        except CorruptionError as error:
            found += 1
            pattern = rf"; device {flip.device} \(process 0\) computed wrongly"
            named += bool(re.search(pattern, error.what))
    return found, named


def at_rest(trainer: Any, state: Any, flips: int, folder: Path) -> tuple[int, int]:
    """Return how many flips of the model's state were found, and how many with the device."""
    rng = np.random.default_rng(1)
    guard = ReplayCheck.Config(every_steps=1).build()
    guard.on_start(trainer, folder)
    batch = next(trainer.train_batches())
    one_step(guard, 1, state, batch)
    paths, _ = jax.tree.flatten_with_path(state.model)
    found = named = 0
    for _ in range(flips):
        path, leaf = paths[rng.integers(len(paths))]
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        flip = random_flip(rng, leaf, bits=8 * leaf.dtype.itemsize, name=name)
        try:
            guard.on_save(1, flip.on_state(1, state))
        except CorruptionError as error:
            found += 1
            named += f"at rest on device {flip.device} (process 0)" in error.what
    return found, named


def one_step(guard: Any, step: int, state: Any, batch: Any) -> None:
    guard.on_batch(step, batch)
    guard.on_state(step, state)


def seconds_of_both(pairs: int, folder: Path) -> tuple[list[float], list[float]]:
    """Return the seconds of steps and of replays, in turns."""
    trainer = trainer_of(1000, **{"data.seq_len": 256})
    guard = ReplayCheck.Config(every_steps=1).build()
    steps, replays = [], []
    with jax.set_mesh(trainer.mesh):
        guard.on_start(trainer, folder)
        program, state = trainer.compiler.compiled_step, trainer.compiler.jitted_init()
        batch = next(trainer.train_batches())
        for number in range(1, pairs + 3):
            started = time.perf_counter()
            state, _ = program(state, trainer.batch_sharding.device_put(batch))
            jax.block_until_ready(state)
            between = time.perf_counter()
            one_step(guard, number, state, batch)
            steps.append(between - started)
            replays.append(time.perf_counter() - between)
    return steps[2:], replays[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--flips", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=30)
    arguments = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("timed", "rested", "wrong"):
            (folder / part).mkdir()
        step_s, replay_s = seconds_of_both(arguments.pairs, folder / "timed")
        trainer, state, alarm = false_alarms(arguments.steps, folder)
        wrong = rested = (0, 0)
        if not alarm:
            rested = at_rest(trainer, state, arguments.flips, folder / "rested")
            wrong = computing_wrongly(trainer, state, arguments.flips, folder / "wrong")
    ratio = float(np.median(np.array(replay_s) / np.array(step_s)))
    every = ReplayCheck.Config().every_steps
    file = record_promise(
        "R23",
        tries=arguments.flips,
        outcome=f"{wrong[0]} of {arguments.flips} faults of a device noticed, {wrong[1]} with the "
        f"device; at rest {rested[0]} of {arguments.flips} flipped bits, {rested[1]} with the "
        f"device; {1 if alarm else 0} false alarms in {arguments.steps} steps; a replay takes "
        f"{ratio:.2f} steps, {100 * ratio / every:.2f} % at one in {every}",
        seconds=time.perf_counter() - started,
        seconds_of_a_step=float(np.median(step_s)),
        seconds_of_a_replay=float(np.median(replay_s)),
        load_average_1min=os.getloadavg()[0],
        alarm=alarm,
    )
    print(file.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
