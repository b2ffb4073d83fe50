"""`dit_peers.py`: a small DiT by axcore."""

from collections.abc import Callable

from axcore.hardware.host_memory import keep_freed_memory

keep_freed_memory()  # as `axcore` does where JAX_PLATFORMS is cpu

import _dit_worker as own  # noqa: E402
import _tiny_worker as worker  # noqa: E402
import numpy as np  # noqa: E402
from _peer_step import step_of  # noqa: E402
from axl_vision.models import dit  # noqa: E402

from axcore.config import update_config  # noqa: E402
from axcore.data import ArrayData  # noqa: E402
from axcore.learner import AdamW, ConstantSchedule, Learner  # noqa: E402
from axcore.tasks import FlowMatching  # noqa: E402
from axcore.trainer import KernelsConfig, Trainer  # noqa: E402


def train_step() -> tuple[Callable[[], float], int]:
    """Return a step that returns its loss, and the number of parameters."""
    model = update_config(
        dit("toy", num_classes=own.CLASSES, image_size=own.SIDE, patch_size=own.PATCH),
        {
            "dim": own.DIM,
            "stack.num_layers": own.LAYERS,
            "stack.unroll": own.LAYERS,
            "**.num_heads": own.HEADS,
            "**.hidden_dim": own.HIDDEN,
            "classes.drop_rate": 0.0,
        },
    )
    latents, classes = own.batch()
    optimizer = AdamW.Config(b1=own.BETAS[0], b2=own.BETAS[1], weight_decay=own.WEIGHT_DECAY)
    cfg = Trainer.Config(
        model=model,
        task=FlowMatching.Config(inputs=("label",)),
        data=ArrayData.Config(
            train={"image": latents, "label": classes},
            batch_size=own.PICTURES,
            validation_fraction=0.0,
        ),
        learner=Learner.Config(
            optimizer=optimizer,
            schedule=ConstantSchedule.Config(peak=own.RATE),
            clip_norm=own.CLIP_NORM,
        ),
        max_steps=1000,
        kernels=KernelsConfig(allow=("portable",)),
    )
    weights = np.ones(own.PICTURES, np.float32)
    batch = {"image": latents, "label": classes, "row_weights": weights}
    return step_of(cfg, batch, "squared_error")


if __name__ == "__main__":
    step, num_params = train_step()
    worker.serve(step, num_params=num_params, packages=("axcore", "jax", "optax"))
