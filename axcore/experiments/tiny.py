"""`tiny`: a small transformer on the bytes of Python's own standard library.

It needs no download, and learns to write something like Python in a minute or two on a laptop.
"""

from axcore.checkpoint import Checkpointer
from axcore.config import update_config
from axcore.data import Data
from axcore.learner import AdamW, Learner, WarmupCosine
from axcore.models import transformer
from axcore.trainer import KernelsConfig, LoggingConfig, Trainer


def tiny() -> Trainer.Config:
    """Return the config."""
    model = transformer(
        vocab_size=264, dim=128, num_layers=4, num_heads=4, num_kv_heads=2, hidden_dim=384
    )
    return Trainer.Config(
        model=update_config(model, {"decoder.stack.unroll": 4}),  # faster on CPUs than a loop
        data=Data.Config(seq_len=128, batch_size=8, validation_batches=32),
        learner=Learner.Config(
            optimizer=AdamW.Config(weight_decay=0.1),
            schedule=WarmupCosine.Config(peak=3e-3, warmup_steps=0.0889),
        ),
        max_steps=450,
        logging=LoggingConfig(every_steps=10),
        eval_every_steps=150,
        checkpoint=Checkpointer.Config(every_steps=50),
        prompt="def ",
        # Kernels for accelerators are not made for float32.
        kernels=KernelsConfig(allow=("portable",)),
    )
