"""Experiments with pictures: models of known recipes, and small ones that need no download.

axcore train vit-l16 --set data.source.folder=SHARDS

The large ones read WebDataset tars of yours: `jpg`, and `cls` or `txt`. The small ones are of the
digits that scikit-learn brings.
"""

from typing import Any, cast

from axcore.checkpoint import Checkpointer
from axcore.config import evolve, update_config
from axcore.data import (
    ByteTokenizer,
    ChatText,
    ExampleData,
    HuggingFaceTokenizer,
    Label,
    SentencePieceTokenizer,
    TarFiles,
    Text,
)
from axcore.layers import MeanPool, num_soft_tokens_of
from axcore.learner import AdamW, Learner, WarmupCosine
from axcore.models import qwen2, transformer
from axcore.modifiers import RematModifier
from axcore.module import DTypes
from axcore.plugins import MeshRule
from axcore.tasks import Classification, Contrastive
from axcore.trainer import KernelsConfig, LoggingConfig, Trainer
from axl_vision.digits import DigitFiles
from axl_vision.encoder import NormalizePixels
from axl_vision.images import Image, RandomFlip, RandomResizedCrop, RandomShift
from axl_vision.models import clip, llava, qwen2_5_vl, siglip, vit

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
            features={"image": DIGIT, "label": Label.Config(classes=tuple("0123456789"))},
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


def digits_chat() -> Trainer.Config:
    """Return the config of a small language model that answers questions about a digit.

    Both parts are trained from random weights, on conversations about each picture. It reads bytes.
    It is a LLaVA, whose exports transformers reads.
    """
    tokenizer = ByteTokenizer.Config(special_tokens=("<image>",))
    text = transformer(
        vocab_size=tokenizer.build().vocab_size,
        dim=64,
        num_layers=2,
        num_heads=4,
        hidden_dim=192,
    )
    model = update_config(
        llava(text, "toy", image_size=16, patch_size=4),
        {
            "encoder.encoder.stack.num_layers": 2,
            "encoder.**.hidden_dim": 128,
            "encoder.**.dropout.rate": 0.1,
            "**.stack.unroll": 2,  # faster on CPUs than a loop
        },
    )
    cfg = digits()
    soft = num_soft_tokens_of(cast(Any, model.decoder).embedding)
    chat = ChatText.Config(field="json", tokenizer=tokenizer, length=144, num_soft_tokens=soft)
    image = evolve(DIGIT, num_channels=3)
    return evolve(
        cfg,
        model=model,
        task=None,
        data=evolve(cfg.data, features={"image": image, "chat": chat}),
        max_steps=1500,
        eval_every_steps=500,
    )


def vit_l16() -> Trainer.Config:
    """Return ViT-L/16 on 1000 classes, from random weights: 300 epochs of 1.28M pictures.

    Source: Beyer et al. 2022, arXiv:2205.01580 (recipe for the smaller models: batch, optimizer,
    rate, warm-up, weight decay, global average pooling). Differs: no RandAugment and no MixUp.
    """
    model = vit("large", num_classes=1000)
    return Trainer.Config(
        model=evolve(
            model,
            encoder=evolve(model.encoder, num_first_tokens=0, pool=MeanPool.Config()),
            dtypes=DTypes(compute="bfloat16"),
        ),
        task=Classification.Config(inputs=("image",), target="label"),
        data=ExampleData.Config(
            source=TarFiles.Config(),
            features={
                "image": Image.Config(
                    field="jpg",
                    height=224,
                    width=224,
                    augment=(RandomResizedCrop.Config(min_area=0.05), RandomFlip.Config()),
                ),
                "label": Label.Config(field="cls", num_classes=1000),
            },
            validation_fraction=0.01,
            batch_size=1024,
            num_workers=32,
        ),
        learner=Learner.Config(
            optimizer=AdamW.Config(weight_decay=0.1),
            schedule=WarmupCosine.Config(peak=1e-3, warmup_steps=10_000 / 375_000),
            clip_norm=1.0,
        ),
        max_steps=375_000,
        eval_every_steps=5000,
        checkpoint=Checkpointer.Config(every_steps=1000),
        mesh_rules=_rules(RematModifier(policy="full"), fsdp=-1),
    )


def siglip_so400m() -> Trainer.Config:
    """Return SigLIP-So400m/14 at 224 pixels: 40B pairs in batches of 32,768.

    Source: Zhai et al. 2023, arXiv:2303.15343, section 4.1. Differs: AdamW in the place of an
    optimizer with factored moments.
    """
    model = siglip("so400m", patch_size=14)
    cfg = vit_l16()
    text = Text.Config(tokenizer=SentencePieceTokenizer.Config(), length=64)
    image = evolve(cfg.data.features["image"], augment=())
    return update_config(
        evolve(
            cfg,
            model=evolve(model, dtypes=DTypes(compute="bfloat16")),
            task=Contrastive.Config(loss="sigmoid"),
            data=evolve(cfg.data, features={"image": image, "text": text}),
        ),
        {
            "data.batch_size": 32_768,
            "max_steps": 1_220_000,
            "learner.optimizer.b2": 0.95,
            "learner.optimizer.weight_decay": 1e-4,
            # 256 devices do not divide a width of 1152.
            "mesh_rules": _rules(RematModifier(policy="full"), data=-1, fsdp=8),
        },
    )


def qwen2_5_vl_7b() -> Trainer.Config:
    """Return Qwen2.5-VL-7B, trained on conversations about a picture each.

    A picture of 448 x 448 pixels is 256 tokens of a row of 2,048. From random weights unless
    `--modify pretrained(path=FOLDER)` reads published ones.

    Source: Bai et al. 2025, arXiv:2502.13923, table 1 (sizes). The rate and the batch are ours.
    """
    model = qwen2_5_vl(qwen2("7b"), "7b")
    soft = num_soft_tokens_of(cast(Any, model.decoder).embedding)
    cfg = vit_l16()
    chat = ChatText.Config(
        field="json",
        tokenizer=HuggingFaceTokenizer.Config(),
        length=2048,
        soft_token="<|image_pad|>",
        num_soft_tokens=soft,
    )
    picture = cast(Any, model.encoder).input_feature()
    return update_config(
        evolve(
            cfg,
            model=evolve(model, dtypes=DTypes(compute="bfloat16")),
            task=None,
            data=evolve(cfg.data, features={"image": evolve(picture, field="jpg"), "chat": chat}),
        ),
        {
            "data.batch_size": 256,
            "max_steps": 10_000,
            "learner.schedule.peak": 1e-5,
            "learner.schedule.warmup_steps": 0.03,
        },
    )


def _rules(*modifiers: Any, **mesh: int) -> tuple[MeshRule, ...]:
    """Return the layout of any accelerator: a mesh, and what else is changed.

    Batches are not cut into parts: a contrastive loss compares all rows of one.
    """
    return tuple(
        MeshRule(match=match, mesh=mesh, modifiers=modifiers) for match in ("tpu-*", "gpu-*")
    )
