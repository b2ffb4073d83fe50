"""Trains by GRPO and prints a digest of the state: DIRECTORY [PHASE NUMBER].

With a phase it dies as by `kill -9` at that occurrence of it: in a step of the engine (rollout), in
a reward, or right before a train step (update).
"""

import hashlib
import os
import signal
import sys

import jax
import numpy as np

from axcore.config import update_config
from axcore.inference.model_runner import ModelRunner
from axcore.rewards import MatchingCharacters
from axcore.rollouts.experiments import grpo_reverse
from axcore.testing.tiny import trainer_on
from axcore.trainer import Trainer

SETTINGS = {
    "model.dim": 16,
    "**.hidden_dim": 16,
    "data.batch_size": 8,
    "data.group_size": 4,
    "data.engine.max_num_seqs": 8,
    "data.engine.num_decode_steps": 1,
    "data.batches_per_rollout": 2,
    "data.epochs_per_rollout": 2,
    "data.max_lag": 1,
    "data.validation_prompts": 4,
    "max_steps": 12,
    "logging.every_steps": 1,
    "eval_every_steps": 12,
    "checkpoint.every_steps": 3,
}


def dies(owner, name, number):
    """Has the process die at the call of a method with that number, from 1."""
    method, count = getattr(owner, name), 0

    def mortal(*args, **kwargs):
        nonlocal count
        count += 1
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*args, **kwargs)

    setattr(owner, name, mortal)


def main(directory, phase="", number="0"):
    if phase == "rollout":
        dies(ModelRunner, "step", int(number))
    elif phase == "reward":
        dies(MatchingCharacters, "score", int(number))
    trainer: Trainer = trainer_on(update_config(grpo_reverse(), SETTINGS), 1)
    if phase == "update":
        compiled = trainer.compiler.compiled_step
        trainer.compiler.__dict__["compiled_step"] = lambda *args: compiled(*args)
        dies(trainer.compiler, "compiled_step", int(number))
    state = trainer.run(directory).state
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(state.model):
        digest.update(np.asarray(leaf).tobytes())
    print("DIGEST", digest.hexdigest())


if __name__ == "__main__":
    main(*sys.argv[1:])
