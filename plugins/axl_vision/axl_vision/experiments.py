"""Experiments with pictures; small ones are of the digits that scikit-learn brings."""

from typing import Any

from axcore.checkpoint import Checkpointer
from axcore.config import evolve, update_config
from axcore.data import ByteTokenizer, ExampleData, Label, Text
from axcore.layers import MeanPool
from axcore.learner import AdamW, Learner, WarmupCosine
from axcore.tasks import Classification, Contrastive
from axcore.trainer import KernelsConfig, LoggingConfig, Trainer
from axl_vision.digits import DigitFiles
from axl_vision.encoder import NormalizePixels
from axl_vision.images import Image, RandomShift
from axl_vision.models import clip, vit

DIGIT = Image.Config(
    height=16,
    width=16,
    num_channels=1,
    fit="stretch",
    augment=(RandomShift.Config(max_fraction=0.07),),
)
"""A digit in grey, moved a little in training."""


def _digit_encoder(encoder: Any) -> Any:
    """Return the encoder of a small ViT, for digits."""
    return update_config(
        encoder,
        {
            "patches.num_channels": 1,
            "stack.unroll": 2,  # faster on CPUs than a loop
            "pool": MeanPool.Config(),
            "**.dropout.rate": 0.1,
        },
    )


def digits() -> Trainer.Config:
    """Return the config of a small ViT that reads handwritten digits."""
    model = vit("toy", num_classes=10, image_size=16, patch_size=4)
    return Trainer.Config(
        model=evolve(model, encoder=_digit_encoder(model.encoder)),
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


def digits_clip() -> Trainer.Config:
    """Return the config of a small CLIP: digits, and captions that name them.

    The text encoder reads bytes; a caption is one of ten, so that many rows of a batch are equal.
    """
    tokenizer = ByteTokenizer.Config()
    length = 24
    model = clip(
        "toy",
        image_size=16,
        patch_size=4,
        vocab_size=tokenizer.build().vocab_size,
        max_length=length,
    )
    model = update_config(model, {"text.decoder.stack.unroll": 2})
    model = evolve(model, image=_digit_encoder(model.image))
    cfg = digits()
    text = Text.Config(tokenizer=tokenizer, length=length, has_frame=True)
    return evolve(
        cfg,
        model=evolve(model, image=evolve(model.image, pixels=NormalizePixels.Config())),
        task=Contrastive.Config(),
        max_steps=600,
        eval_every_steps=200,
        data=evolve(cfg.data, features={"image": DIGIT, "text": text}),
    )
