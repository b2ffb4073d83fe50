"""How long saving and restoring a state takes, and how many files a step has.

    python benchmarks/checkpoint.py [--state NAME ...] [DIRECTORY]

States are parameters with AdamW's moments: of the model `tiny`, of 32M and of 110M parameters in
unrolled layers. Saves and restores in turn, in DIRECTORY or a temporary one, and prints medians.
"Save returns" is what a training loop waits; the write continues meanwhile. "Disk" is a plain write
of as many bytes into one file, flushed to the disk: the least that a committed save can take.
Snapshots go into /dev/shm, where there is one. The processor time of all threads (`_cpu_s`) is
printed, too: it depends less on what else the machine does.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _record import record, recorded

from axcore.checkpoint import Checkpointer, MemorySnapshots
from axcore.experiments import tiny

ROUNDS = 6
STATES = ("tiny", "32M", "110M")
MEMORY = "/dev/shm"


def layers(dim: int, hidden: int, vocab: int) -> dict[str, Any]:
    """Return the shapes of twelve unrolled layers and an embedding."""
    layer = {"qkv": (dim, 3 * dim), "out": (dim, dim), "up": (dim, hidden), "n": (dim,)}
    layer["down"] = (hidden // 2 if vocab == 0 else hidden, dim)
    shapes: dict[str, Any] = {f"layer{i}": layer for i in range(12)}
    return shapes | ({"embedding": {"weight": (vocab, dim)}} if vocab else {})


def make_params(name: str) -> Any:
    if name == "tiny":
        return tiny().model.build().init(0)
    shapes = layers(512, 2048, 0) if name == "32M" else layers(768, 3072, 32_000)
    return jax.tree.map(filled, shapes, is_leaf=lambda x: isinstance(x, tuple))


def filled(shape: tuple[int, ...]) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape, dtype=np.float32))


def make_state(name: str) -> dict[str, Any]:
    params = make_params(name)
    moments = optax.adamw(1e-3).init(params)
    moments = jax.tree.map(lambda x: filled(x.shape) if x.ndim else x, moments)
    return {"params": params, "opt_state": moments}


def write_plainly(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def measure(name: str, directory: Path, memory: Path) -> dict[str, Any]:
    state = make_state(name)
    leaves = jax.tree.leaves(state)
    num_bytes = sum(leaf.nbytes for leaf in leaves)
    data = np.random.default_rng(1).bytes(num_bytes)
    template = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
    times: dict[str, list[float]] = {}

    @contextmanager
    def noted(what: str) -> Iterator[None]:
        started, cpu = time.perf_counter(), time.process_time()
        yield
        times.setdefault(f"{what}_s", []).append(time.perf_counter() - started)
        times.setdefault(f"{what}_cpu_s", []).append(time.process_time() - cpu)

    with Checkpointer.Config(keep=2).build(directory=str(directory / "run")) as checkpoints:
        for step in range(1, ROUNDS + 1):
            with noted("save_committed"):
                with noted("save_returns"):
                    checkpoints.save(step, state)
                checkpoints.wait()
            with noted("restore"):
                jax.block_until_ready(checkpoints.restore(template).state)
            with noted("verify"):
                checkpoints.verify(step)
            with noted("disk"):
                write_plainly(directory / "plain", data)
        files = list((checkpoints.directory / f"step_{ROUNDS:08d}").rglob("*"))
    snapshots = MemorySnapshots(
        MemorySnapshots.Config(every_steps=1, directory=str(memory)), {"id": name}
    )
    snapshots.open(0)
    for step in range(1, ROUNDS + 1):
        with noted("snapshot_taken"):
            with noted("snapshot_returns"):
                snapshots.take(step, state, {})
            snapshots.wait()
        with noted("snapshot_restore"):
            found = snapshots.restore(template, newer_than=0)
            assert found is not None, "the snapshot was just taken"
            jax.block_until_ready(found.state)
        del found
    snapshots.delete()
    return {
        "num_parameters": sum(leaf.size for leaf in jax.tree.leaves(state["params"])),
        "num_leaves": len(leaves),
        "megabytes": round(num_bytes / 1e6, 1),
        "num_files": sum(file.is_file() for file in files),
        "rounds": ROUNDS - 1,
        **{what: round(statistics.median(found[1:]), 4) for what, found in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--state", nargs="+", default=STATES, choices=STATES)
    parser.add_argument("directory", nargs="?")
    options = parser.parse_args()
    memory = MEMORY if os.path.isdir(MEMORY) else None
    known = recorded("checkpoint")
    figures = {name: known[name] for name in STATES if name in known}
    for name in options.state:
        with (
            tempfile.TemporaryDirectory(dir=options.directory) as folder,
            tempfile.TemporaryDirectory(dir=memory) as ram,
        ):
            figures[name] = measure(name, Path(folder), Path(ram))
        print(name)
        for what, value in figures[name].items():
            print(f"  {what:20} {value}")
    print("written to", record("checkpoint", figures))


if __name__ == "__main__":
    main()
