"""`vit_peers.py` and its like: axcore's side of a race, once there are a config and a batch."""

from collections.abc import Callable
from typing import Any

import jax

from axcore.module import count_params
from axcore.trainer import Trainer


def step_of(cfg: Trainer.Config, batch: Any, loss_name: str) -> tuple[Callable[[], float], int]:
    """Return a step that returns its loss, and the number of parameters.

    Args:
        cfg: Of the run.
        batch: Of each step.
        loss_name: Of its losses, the one that is returned.
    """
    trainer = cfg.build()
    with jax.set_mesh(trainer.mesh):
        state = trainer.compiler.jitted_init()
        program = trainer.compiler.compiled_step

    def step() -> float:
        nonlocal state
        state, metrics = program(state, trainer.batch_sharding.device_put(batch))
        loss = metrics.losses[loss_name]
        return float(loss.sum / loss.weight)

    return step, count_params(trainer.step.specs)
