"""Experiments with pictures; small ones are of the digits that scikit-learn brings."""

from axcore.checkpoint import Checkpointer
from axcore.config import update_config
from axcore.data import ExampleData, Label
from axcore.layers import MeanPool
from axcore.learner import AdamW, Learner, WarmupCosine
from axcore.tasks import Classification
from axcore.trainer import KernelsConfig, LoggingConfig, Trainer
from axl_vision.digits import DigitFiles
from axl_vision.images import Image, RandomShift
from axl_vision.models import vit

DIGIT = Image.Config(
    height=16,
    width=16,
    num_channels=1,
    fit="stretch",
    augment=(RandomShift.Config(max_fraction=0.07),),
)
"""A digit in grey, moved a little in training."""


def digits() -> Trainer.Config:
    """Return the config of a small ViT that reads handwritten digits."""
    model = vit("toy", num_classes=10, image_size=16, patch_size=4)
    model = update_config(
        model,
        {
            "encoder.patches.num_channels": 1,
            "encoder.stack.unroll": 2,  # faster on CPUs than a loop
            "encoder.pool": MeanPool.Config(),
            "**.dropout.rate": 0.1,
        },
    )
    return Trainer.Config(
        model=model,
        task=Classification.Config(inputs=("image",), target="label", label_smoothing=0.1),
        data=ExampleData.Config(
            source=DigitFiles.Config(),
            features={"image": DIGIT, "label": Label.Config()},
            validation_fraction=0.2,
            batch_size=64,
        ),
        learner=Learner.Config(
            optimizer=AdamW.Config(weight_decay=0.1),
            schedule=WarmupCosine.Config(peak=3e-3, warmup_steps=0.1),
        ),
        max_steps=1500,
        logging=LoggingConfig(every_steps=50),
        eval_every_steps=500,
        checkpoint=Checkpointer.Config(every_steps=250),
        # Kernels for accelerators are not made for float32.
        kernels=KernelsConfig(allow=("portable",)),
    )
