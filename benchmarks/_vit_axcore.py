"""`vit_peers.py`: a small ViT by axcore."""

from collections.abc import Callable

from axcore.hardware.host_memory import keep_freed_memory

keep_freed_memory()  # as `axcore` does where JAX_PLATFORMS is cpu

import _tiny_worker as worker  # noqa: E402
import _vit_worker as vit_worker  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from _peer_step import step_of  # noqa: E402
from axl_vision.models import vit  # noqa: E402

from axcore.config import update_config  # noqa: E402
from axcore.data import ArrayData  # noqa: E402
from axcore.learner import AdamW, ConstantSchedule, Learner  # noqa: E402
from axcore.tasks import Classification  # noqa: E402
from axcore.trainer import KernelsConfig, Trainer  # noqa: E402


def train_step() -> tuple[Callable[[], float], int]:
    """Return a step that returns its loss, and the number of parameters."""
    own = vit_worker
    model = vit("toy", num_classes=own.CLASSES, image_size=own.SIDE, patch_size=own.PATCH)
    model = update_config(
        model,
        {
            "encoder.dim": own.DIM,
            "encoder.stack.num_layers": own.LAYERS,
            "encoder.stack.unroll": own.LAYERS,
            "**.attention.num_heads": own.HEADS,
            "**.hidden_dim": own.HIDDEN,
        },
    )
    pictures, labels = own.batch()
    optimizer = AdamW.Config(b1=own.BETAS[0], b2=own.BETAS[1], weight_decay=own.WEIGHT_DECAY)
    cfg = Trainer.Config(
        model=model,
        task=Classification.Config(inputs=("image",), target="label"),
        data=ArrayData.Config(
            train={"image": pictures, "label": labels},
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
    weights = jnp.ones(own.PICTURES, jnp.float32)
    made = {"image": jnp.asarray(pictures), "label": jnp.asarray(labels), "row_weights": weights}
    return step_of(cfg, made, "cross_entropy")


if __name__ == "__main__":
    step, num_params = train_step()
    worker.serve(step, num_params=num_params, packages=("axcore", "jax", "optax"))
