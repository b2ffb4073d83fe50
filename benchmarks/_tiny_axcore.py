"""`tiny_peers.py`: the experiment `tiny` by axcore, on the rivals' batch and numbers."""

from collections.abc import Callable

from axcore.hardware.host_memory import keep_freed_memory

keep_freed_memory()  # as `axcore` does where JAX_PLATFORMS is cpu

import _tiny_worker as worker  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from axcore.config import update_config  # noqa: E402
from axcore.experiments.tiny import tiny  # noqa: E402
from axcore.module import count_params  # noqa: E402


def train_step() -> tuple[Callable[[], float], int]:
    """Return a step that returns its loss, and the number of parameters."""
    cfg = update_config(
        tiny(),
        {
            "learner.schedule.peak": worker.RATE,
            "learner.optimizer.weight_decay": worker.WEIGHT_DECAY,
        },
    )
    trainer = cfg.build()
    tokens, targets = (jnp.asarray(one) for one in worker.batch())
    made = {
        "tokens": tokens,
        "targets": targets,
        "positions": jnp.broadcast_to(jnp.arange(worker.TOKENS), tokens.shape),
        "segment_ids": jnp.ones_like(tokens),
        "loss_weights": jnp.ones(tokens.shape, jnp.float32),
    }
    with jax.set_mesh(trainer.mesh):
        state = trainer.compiler.jitted_init()
        program = trainer.compiler.compiled_step

    def step() -> float:
        nonlocal state
        state, metrics = program(state, trainer.batch_sharding.device_put(made))
        (loss,) = metrics.losses.values()
        return float(loss.sum / loss.weight)

    return step, count_params(trainer.step.specs)


if __name__ == "__main__":
    step, num_params = train_step()
    worker.serve(step, num_params=num_params, packages=("axcore", "jax", "optax"))
