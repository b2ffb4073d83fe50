"""`tiny_peers.py`: the experiment `tiny` by axcore, on the rivals' batch and numbers."""

import _tiny_worker as worker

from axcore.cli.target import use_target

use_target(None)  # as `axcore train` does before it imports jax

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from axcore.config import update_config  # noqa: E402
from axcore.experiments.tiny import tiny  # noqa: E402
from axcore.module import count_params  # noqa: E402


def main() -> None:
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

        packages = ("axcore", "jax", "optax")
        worker.serve(step, num_params=count_params(trainer.step.specs), packages=packages)


if __name__ == "__main__":
    main()
