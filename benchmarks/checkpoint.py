"""How long saving and restoring a state of 32M parameters takes: 60 of them, with AdamW's moments.

    python benchmarks/checkpoint.py [DIRECTORY]

Saves and restores in turn, in DIRECTORY or a temporary one, and prints medians. "Save returns" is
what a training loop waits; the write continues meanwhile. "Disk" is a plain write of as many bytes
into one file, flushed to the disk: the least that a committed save can take.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _record import record

from axcore.checkpoint import Checkpointer

ROUNDS = 6
SHAPES = {
    "qkv": (512, 1536),
    "out": (512, 512),
    "up": (512, 2048),
    "down": (1024, 512),
    "n": (512,),
}


def make_state() -> dict[str, Any]:
    draw = np.random.default_rng(0)

    def normal(shape: tuple[int, ...]) -> jax.Array:
        return jnp.asarray(draw.standard_normal(shape, dtype=np.float32))

    params = {f"layer{i}": {n: normal(s) for n, s in SHAPES.items()} for i in range(12)}
    moments = optax.adamw(1e-3).init(params)
    filled = jax.tree.map(lambda x: normal(x.shape) if x.ndim else x, moments)
    return {"params": params, "opt_state": filled}


def timed(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - started


def write_plainly(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def measure(directory: Path) -> dict[str, Any]:
    state = make_state()
    leaves = jax.tree.leaves(state)
    num_bytes = sum(leaf.nbytes for leaf in leaves)
    data = np.random.default_rng(1).bytes(num_bytes)
    template = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
    times: dict[str, list[float]] = {
        name: []
        for name in ("save_returns_s", "save_committed_s", "restore_s", "verify_s", "disk_s")
    }
    with Checkpointer.Config(keep=2).build(directory=str(directory / "run")) as checkpoints:
        for step in range(1, ROUNDS + 1):
            started = time.perf_counter()
            times["save_returns_s"].append(timed(partial(checkpoints.save, step, state)))
            checkpoints.wait()
            times["save_committed_s"].append(time.perf_counter() - started)
            times["restore_s"].append(timed(lambda: checkpoints.restore(template).state))
            times["verify_s"].append(timed(partial(checkpoints.verify, step)))
            times["disk_s"].append(timed(lambda: write_plainly(directory / "plain", data)))
    return {
        "num_parameters": sum(leaf.size for leaf in jax.tree.leaves(state["params"])),
        "num_leaves": len(leaves),
        "megabytes": round(num_bytes / 1e6, 1),
        "rounds": ROUNDS - 1,
        **{name: round(statistics.median(found[1:]), 4) for name, found in times.items()},
    }


def main() -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        figures = measure(Path(folder))
    for name, value in figures.items():
        print(f"{name:20} {value}")
    print("written to", record("checkpoint", figures))


if __name__ == "__main__":
    main()
