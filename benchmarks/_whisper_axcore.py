"""`whisper_peers.py`: a small Whisper by axcore."""

from collections.abc import Callable

from axcore.hardware.host_memory import keep_freed_memory

keep_freed_memory()  # as `axcore` does where JAX_PLATFORMS is cpu

import _tiny_worker as worker  # noqa: E402
import _whisper_worker as own  # noqa: E402
import numpy as np  # noqa: E402
from _peer_step import step_of  # noqa: E402
from axl_audio.models import whisper  # noqa: E402

from axcore.config import update_config  # noqa: E402
from axcore.data import ArrayData  # noqa: E402
from axcore.learner import AdamW, ConstantSchedule, Learner  # noqa: E402
from axcore.trainer import KernelsConfig, Trainer  # noqa: E402


def train_step() -> tuple[Callable[[], float], int]:
    """Return a step that returns its loss, and the number of parameters."""
    model = update_config(
        whisper("toy"),
        {
            "vocab_size": own.WORDS,
            "dim": own.DIM,
            "features.num_bands": own.BANDS,
            "encoder.positions.length": own.TOKENS,
            "decoder.embedding.max_length": own.LENGTH,
            "*.stack.num_layers": own.LAYERS,
            "*.stack.unroll": own.LAYERS,
            "**.num_heads": own.HEADS,
            "**.hidden_dim": own.HIDDEN,
        },
    )
    sounds, tokens = own.batch()
    arrays = {
        "sound": sounds,
        "sound_length": np.full(own.SOUNDS, own.SAMPLES, np.int32),
        "text": tokens,
        "text_mask": np.ones(tokens.shape, bool),
    }
    optimizer = AdamW.Config(b1=own.BETAS[0], b2=own.BETAS[1], weight_decay=own.WEIGHT_DECAY)
    cfg = Trainer.Config(
        model=model,
        data=ArrayData.Config(train=arrays, batch_size=own.SOUNDS, validation_fraction=0.0),
        learner=Learner.Config(
            optimizer=optimizer,
            schedule=ConstantSchedule.Config(peak=own.RATE),
            clip_norm=own.CLIP_NORM,
        ),
        max_steps=1000,
        kernels=KernelsConfig(allow=("portable",)),
    )
    batch = arrays | {"row_weights": np.ones(own.SOUNDS, np.float32)}
    return step_of(cfg, batch, "cross_entropy")


if __name__ == "__main__":
    step, num_params = train_step()
    worker.serve(step, num_params=num_params, packages=("axcore", "jax", "optax"))
