"""Experiments with models that generate pictures."""

from axcore.checkpoint import Checkpointer
from axcore.config import update_config
from axcore.data import ExampleData, Label
from axcore.learner import EMA, AdamW, Learner, WarmupCosine
from axcore.tasks import FlowMatching, LogitNormalTime
from axcore.trainer import KernelsConfig, LoggingConfig, Trainer
from axl_vision.digits import DigitFiles
from axl_vision.images import Image
from axl_vision.models.dit import dit

SIZE = 16
"""Pixels of a side, as the experiment `digits` reads them."""


def digits_flow() -> Trainer.Config:
    """Return the config of a small DiT that draws handwritten digits."""
    model = dit("toy", num_classes=10, image_size=SIZE, patch_size=4, num_channels=1)
    return Trainer.Config(
        model=update_config(model, {"stack.unroll": 4}),  # faster on CPUs than a loop
        task=FlowMatching.Config(inputs=("label",), times=LogitNormalTime.Config()),
        data=ExampleData.Config(
            source=DigitFiles.Config(),
            features={
                # As they are: what augments them would be learned, and drawn.
                "image": Image.Config(height=SIZE, width=SIZE, num_channels=1, fit="stretch"),
                "label": Label.Config(classes=tuple("0123456789")),
            },
            validation_fraction=0.2,
            batch_size=64,
        ),
        learner=Learner.Config(
            optimizer=AdamW.Config(weight_decay=0.0),
            schedule=WarmupCosine.Config(peak=2e-3, warmup_steps=0.05),
            ema=EMA.Config(decay=0.995),
        ),
        max_steps=3000,
        logging=LoggingConfig(every_steps=100),
        eval_every_steps=1000,
        checkpoint=Checkpointer.Config(every_steps=500),
        # Kernels for accelerators are not made for float32.
        kernels=KernelsConfig(allow=("portable",)),
    )
