"""A run of rollouts so small that a step takes no time, and what stops it at a step."""

import signal

from axcore.checkpoint import Checkpointer
from axcore.config import update_config
from axcore.inference import EngineConfig
from axcore.rollouts.experiments import grpo_reverse
from axcore.trainer import StepsDone


def small(**changes):
    """Returns `grpo` with so few and short completions that a step takes no time."""
    return update_config(
        grpo_reverse(),
        {
            "model.dim": 16,
            "**.hidden_dim": 16,
            "data.batch_size": 8,
            "data.group_size": 4,
            "data.engine": EngineConfig(
                max_num_seqs=8,
                batch_size_buckets=(8,),
                max_num_batched_tokens=16,
                num_decode_steps=4,
                sampler_kinds=("plain",),
            ),
            "data.validation_prompts": 4,
            "max_steps": 4,
            "logging.every_steps": 1,
            "eval_every_steps": 2,
            "checkpoint": Checkpointer.Config(every_steps=2),
            **changes,
        },
    )


def stop_at(step):
    def observer(event):
        if isinstance(event, StepsDone) and event.step == step:
            signal.raise_signal(signal.SIGINT)

    return observer
