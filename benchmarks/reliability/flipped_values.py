"""R21: flipped bits that make a parameter huge are found before a save, and what that costs.

First a state of a given size is saved, each time looked through before; then the highest bit of an
exponent is flipped in random elements of random arrays of that state, on the host's CPU. What it
costs is seconds of the processor, which other work on the machine does not change; a save's are all
until its step is committed.

    python benchmarks/reliability/flipped_values.py --mib 600 --saves 5 --flips 100

Its default form takes about 2 minutes on two cores.
"""

import argparse
import os
import tempfile
import time
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from _result import record_promise

from axcore.checkpoint import Checkpointer
from axcore.config import update_config
from axcore.experiments.named import experiment
from axcore.resilience.faults import FlipBit
from axcore.trainer import RollbackRequest
from axcore.trainer.flipped_values import FlippedValues


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=600)
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--flips", type=int, default=100)
    arguments = parser.parse_args()
    began = time.perf_counter()
    # A layer of tiny with AdamW's moments; 12 bytes a parameter, and four matrices of dim by dim.
    dim = max(64, int((arguments.mib * 2**20 / 12 / 12 / 4) ** 0.5) // 64 * 64)
    changes = {"model.dim": dim, "**.num_heads": 4, "**.num_kv_heads": 4, "**.hidden_dim": 3 * dim}
    trainer = update_config(experiment("tiny"), changes).build()
    with jax.set_mesh(trainer.mesh), tempfile.TemporaryDirectory() as folder:
        values = FlippedValues(trainer.step.specs)
        state = trainer.compiler.jitted_init()
        values.take(0, state)
        cfg = Checkpointer.Config(directory=folder, saves_in_background=False, keep=1)
        times = [one_save(cfg, values, state, step) for step in range(1, arguments.saves + 1)]
        found = sum(is_found(values, state, seed) for seed in range(arguments.flips))
    checks, saves = np.array(times).T
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) / 2**20
    record_promise(
        "R21",
        tries=arguments.flips,
        outcome=f"{found} of {arguments.flips} flipped bits found, 0 false alarms in "
        f"{arguments.saves} saves; {np.median(checks):.2f} s of the processor for {size:,.0f} MiB, "
        f"of which a save takes {np.median(saves):.1f} s",
        seconds=time.perf_counter() - began,
        shares=[round(float(share), 4) for share in checks / saves],
        load_average_1min=os.getloadavg()[0],
    )


def one_save(
    cfg: Checkpointer.Config, values: FlippedValues, state: Any, step: int
) -> tuple[float, float]:
    """Look through a state and save it; returns the processor's seconds of both."""
    fresh = jax.block_until_ready(jax.tree.map(lambda leaf: leaf + 0, state))
    started = time.process_time()
    values.check(step, fresh)
    checked = time.process_time()
    with cfg.build() as checkpointer:
        checkpointer.save(step, fresh)
    return checked - started, time.process_time() - checked


def is_found(values: FlippedValues, state: Any, seed: int) -> bool:
    """Whether a bit that is flipped in a random parameter is found."""
    rng = np.random.default_rng(seed)
    paths, _ = jax.tree.flatten_with_path(state.model)
    path, leaf = paths[rng.integers(len(paths))]
    name = jax.tree_util.keystr(path, simple=True, separator=".")
    place = int(rng.integers(leaf.size))
    flip = FlipBit(at_step=1, parameter=name, element=place, bit=30)
    try:
        values.check(10**6 + seed, flip.on_state(1, state))
    except RollbackRequest as request:
        return f"model.{name} holds" in str(request)
    return False


if __name__ == "__main__":
    main()
