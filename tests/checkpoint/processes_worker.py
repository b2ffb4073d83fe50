"""One of several processes that save or restore together; `test_processes.py` starts it.

Arguments: address, number of processes, index, directory, and what to do. It prints JSON.
"""

import json
import os
import signal
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from axcore.checkpoint import Checkpointer
from axcore.distributed import TimeLimits, barrier, exit_process, is_process_zero, join_processes
from axcore.errors import AxcoreError


def shardings():
    replicas = int(os.environ.get("REPLICAS", "1"))
    mesh = jax.make_mesh((replicas, jax.device_count() // replicas), ("replica", "x"))
    split, whole = PartitionSpec("x"), PartitionSpec()
    return {"w": NamedSharding(mesh, split), "step": NamedSharding(mesh, whole)}


def values_of(step):
    return np.random.default_rng(step).standard_normal((64, 512), dtype=np.float32)


def state_of(step):
    placed = shardings()
    w = jax.make_array_from_callback((64, 512), placed["w"], lambda index: values_of(step)[index])
    # By a callback, too: what `device_put` makes on one device of each process has no shards.
    number = jax.make_array_from_callback((), placed["step"], lambda index: np.int32(step))
    return {"w": w, "step": number}


def template():
    placed = shardings()
    return {
        "w": jax.ShapeDtypeStruct((64, 512), jnp.float32, sharding=placed["w"]),
        "step": jax.ShapeDtypeStruct((), jnp.int32, sharding=placed["step"]),
    }


def error_of(act):
    try:
        act()
    except AxcoreError as error:
        return [type(error).__name__, error.what]
    return None


def save_now(checkpoints, step):
    checkpoints.save(step, state_of(step), {"step": step})
    checkpoints.wait()


def save(checkpoints, directory):
    """Saves three steps, the second of which finds a file in its way."""
    checkpoints.save(1, state_of(1), {"step": 1})
    checkpoints.wait()
    if is_process_zero():
        (directory / "step_00000002.incomplete").write_text("in the way")
    barrier("a file is in the way")
    refused = error_of(lambda: save_now(checkpoints, 2))
    barrier("refused")
    if is_process_zero():
        (directory / "step_00000002.incomplete").unlink()
    checkpoints.save(3, state_of(3), {"step": 3})
    checkpoints.wait()
    alone = error_of(lambda: checkpoints.save(4, {"w": jnp.ones(3)}))
    return {"refused": refused, "alone": alone, "steps": checkpoints.steps()}


def restore(checkpoints, directory):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        restored = checkpoints.restore(template())
    right = values_of(restored.step)
    parts = restored.state["w"].addressable_shards
    return {
        "step": restored.step,
        "extra": restored.extra,
        "is right": all(np.array_equal(part.data, right[part.index]) for part in parts),
        "rows": sum(part.data.shape[0] for part in parts),
        "warnings": [str(one.message) for one in caught],
    }


def retry(checkpoints, directory):
    """A file is in the way of the step until the first process has warned of it."""
    in_the_way, told = directory / "step_00000008.incomplete", []

    def clear(message, *_):
        told.append(str(message))
        in_the_way.unlink()

    save_now(checkpoints, 7)  # the lock is taken, which clears such files
    warnings.showwarning = clear
    if is_process_zero():
        in_the_way.write_text("in the way")
    save_now(checkpoints, 8)
    return {"warnings": told, "steps": checkpoints.steps()}


def die(checkpoints, directory):
    """Commits a step; then one process is killed while another is being written."""
    checkpoints.save(5, state_of(5), {"step": 5})
    checkpoints.wait()
    checkpoints.save(6, state_of(6), {"step": 6})
    if not is_process_zero():
        os.kill(os.getpid(), signal.SIGKILL)
    checkpoints.wait()
    return {}


def die_at_commit(checkpoints, directory):
    """The first process is killed just before the step gets its name."""

    def hook(event, args):
        if event == "os.rename" and str(args[0]).endswith("step_00000007.incomplete"):
            os.kill(os.getpid(), signal.SIGKILL)

    if is_process_zero():
        sys.addaudithook(hook)
    checkpoints.save(7, state_of(7), {"step": 7})
    checkpoints.wait()
    return {}


def main():
    address, count, index, directory, task = sys.argv[1:]
    limits = TimeLimits(join_s=60, barrier_s=60, heartbeat_s=10)
    join_processes(address, process_count=int(count), process_index=int(index), limits=limits)
    acts = {"save": save, "restore": restore, "retry": retry}
    acts |= {"die": die, "die at commit": die_at_commit}
    tries = 2 if task == "retry" else 1
    with Checkpointer.Config(tries=tries).build(directory=directory) as checkpoints:
        print(json.dumps(acts[task](checkpoints, Path(directory))), flush=True)


if __name__ == "__main__":
    try:
        main()
    except AxcoreError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        exit_process(error.exit_code)
