"""Trains in a process of its own, a small transformer or a classifier; `test_kill.py` runs it.

Arguments: a folder of text or `digits`, run directory, and optionally an event and a step to be
killed at. It prints a digest of every bit of the last state.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np

from axcore.checkpoint import Checkpointer
from axcore.data import Data, TextFiles
from axcore.learner import Learner, WarmupCosine
from axcore.models import transformer
from axcore.trainer import LoggingConfig, Trainer


def config_of(folder):
    return Trainer.Config(
        model=transformer(vocab_size=264, dim=32, num_layers=2, num_heads=2, hidden_dim=64),
        data=Data.Config(
            source=TextFiles.Config(folder=folder),
            seq_len=64,
            batch_size=8,
            validation_fraction=0.1,
            validation_batches=1,
        ),
        learner=Learner.Config(schedule=WarmupCosine.Config(peak=0.01, warmup_steps=3)),
        max_steps=16,
        logging=LoggingConfig(every_steps=1),
        eval_every_steps=8,
        checkpoint=Checkpointer.Config(every_steps=4),
    )


def digits_config():
    sys.path.append(str(Path(__file__).parents[1] / "support"))
    from digits import digits_experiment

    every = {"logging.every_steps": 1, "eval_every_steps": 8}
    return digits_experiment(max_steps=16, checkpoint=Checkpointer.Config(every_steps=4), **every)


def killed_at(name, step):
    """Returns an observer that kills this process, as `kill -9` does, at an event of a step."""

    def observer(event):
        if type(event).__name__ == name and event.step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return observer


def main():
    folder, directory, *death = sys.argv[1:]
    observers = [killed_at(death[0], int(death[1]))] if death else []
    cfg = digits_config() if folder == "digits" else config_of(folder)
    result = cfg.build().run(directory, observers, quiet=True)
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(result.state):
        digest.update(np.asarray(leaf).tobytes())
    print(result.step, digest.hexdigest())


if __name__ == "__main__":
    main()
