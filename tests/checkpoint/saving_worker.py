"""Saves one step after another until it is killed; `test_kill.py` runs it.

Arguments: directory, first step, and optionally a file operation to die at: an audit event, and how
the path that it is about to change ends.
It prints `saved N` once step N is committed.
"""

import os
import signal
import sys
import warnings

os.environ["JAX_PLATFORMS"] = "cpu"

import jax.numpy as jnp
import numpy as np

from axcore.checkpoint import Checkpointer

warnings.filterwarnings("ignore", r"Python 3\.12\.[012] starts no threads")


def state_of(step):
    values = np.random.default_rng(step).standard_normal((200, 1000), dtype=np.float32)
    return {"w": jnp.asarray(values), "step": jnp.asarray(step, jnp.int32)}


def die_before(wanted_event, path_end):
    """Kills this process just before it changes a path that ends so, or its temporary file."""

    def hook(event, args):
        if event != wanted_event:
            return
        if str(args[0]).removesuffix(f".{os.getpid()}.tmp").endswith(path_end):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def main():
    directory, first = sys.argv[1], int(sys.argv[2])
    checkpoints = Checkpointer.Config(keep=2).build(directory=directory)
    if len(sys.argv) > 3:
        die_before(*sys.argv[3:])
    for step in range(first, first + 1000):
        checkpoints.save(step, state_of(step), {"step": step})
        if step % 2:
            checkpoints.wait()
            print("saved", step, flush=True)


if __name__ == "__main__":
    main()
