"""Experiments with models that generate pictures."""

from axcore.checkpoint import Checkpointer
from axcore.config import evolve, update_config
from axcore.data import ExampleData, Label, TarFiles
from axcore.learner import EMA, AdamW, ConstantSchedule, Learner, WarmupCosine
from axcore.module import DTypes
from axcore.plugins import MeshRule
from axcore.tasks import FlowMatching, LogitNormalTime
from axcore.trainer import KernelsConfig, LoggingConfig, Trainer
from axl_vision.digits import DigitFiles
from axl_vision.images import Image
from axl_vision.latents import Latents
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


def dit_xl2() -> Trainer.Config:
    """Return DiT-XL/2 of pictures of 256 x 256 pixels, as 32 x 32 x 4 latents of an autoencoder.

    Source: Peebles and Xie 2022, arXiv:2212.09748, section 4 (model, batch, optimizer, rate,
    average of weights, steps); Ma et al. 2024, arXiv:2401.08740, trains it so by flow matching.
    Differs: latents are not those of mirrored pictures.
    """
    side = 32
    model = dit("xlarge", num_classes=1000, image_size=side)
    return Trainer.Config(
        model=evolve(model, dtypes=DTypes(compute="bfloat16")),
        task=FlowMatching.Config(inputs=("label",)),
        data=ExampleData.Config(
            source=TarFiles.Config(),
            features={
                "image": Latents.Config(height=side, width=side, scale=0.18215),
                "label": Label.Config(field="cls", num_classes=1000),
            },
            validation_fraction=0.01,
            batch_size=256,
            num_workers=8,
        ),
        learner=Learner.Config(
            optimizer=AdamW.Config(b2=0.999, weight_decay=0.0),
            schedule=ConstantSchedule.Config(peak=1e-4),
            ema=EMA.Config(decay=0.9999),
        ),
        max_steps=7_000_000,
        eval_every_steps=50_000,
        checkpoint=Checkpointer.Config(every_steps=5000),
        # Its activations fit without being made again; 256 devices do not divide a width of 1152.
        mesh_rules=tuple(
            MeshRule(match=match, mesh={"data": -1, "fsdp": 8}) for match in ("tpu-*", "gpu-*")
        ),
    )
