"""Experiments with sound; a small one is of digits that a speech synthesizer speaks.

axcore train whisper-large-v3 --set data.source.folder=SHARDS \\
    --set 'data.features["text"].tokenizer.path=tokenizer.json'

reads WebDataset tars of yours: `flac`, of half a minute at most, and `txt`.
"""

from axcore.checkpoint import Checkpointer
from axcore.config import evolve, update_config
from axcore.data import ByteTokenizer, ChatText, ExampleData, HuggingFaceTokenizer, TarFiles, Text
from axcore.layers import RoPE, ScannedLayers, encoder_layer
from axcore.learner import AdamW, Learner, WarmupCosine, WarmupLinear
from axcore.models import transformer
from axcore.modifiers import RematModifier
from axcore.module import DTypes
from axcore.plugins import MeshRule
from axcore.tasks import CTC
from axcore.trainer import KernelsConfig, LoggingConfig, Trainer
from axl_audio.digits import MARK, SpokenDigitChats, SpokenDigits
from axl_audio.encoder import CTCModel, SpeechEncoder, Subsampling
from axl_audio.features import LogMel, SpecAugment
from axl_audio.models import voxtral, whisper
from axl_audio.sound import Audio, RandomGain, RandomNoise, SpeedPerturbation
from axl_audio.sound_tokens import WholeSound

SPEECH = Audio.Config(
    max_seconds=3.2,
    augment=(
        SpeedPerturbation.Config(percent=(80, 90, 100, 110, 120)),
        RandomNoise.Config(min_decibel=15, max_decibel=60),
        RandomGain.Config(),
    ),
)
"""Up to four digits, spoken a little faster or slower in training, and with noise."""


def spoken_digits() -> Trainer.Config:
    """Return the config of a small CTC model that writes down spoken digits."""
    # Relative positions, as which sound comes next is about the same anywhere in a row.
    layer = update_config(
        encoder_layer(num_heads=4, hidden_dim=192), {"attention.position": RoPE.Config()}
    )
    model = CTCModel.Config(
        vocab_size=ByteTokenizer.Config().build().vocab_size,
        features=LogMel.Config(num_bands=40),
        augment=SpecAugment.Config(max_bands=6, max_frames=12, max_fraction=0.1),
        encoder=SpeechEncoder.Config(
            dim=96,
            subsampling=Subsampling.Config(strides=(2, 1, 2)),
            stack=ScannedLayers.Config(num_layers=3, layer=layer, unroll=3),
        ),
    )
    return Trainer.Config(
        model=update_config(model, {"**.dropout.rate": 0.1}),
        task=CTC.Config(separator=ord(" ")),
        data=ExampleData.Config(
            source=SpokenDigits.Config(),
            validation_source=SpokenDigits.Config(speakers="held_out"),
            features={"sound": SPEECH, "text": Text.Config(length=24)},
            batch_size=32,
        ),
        learner=Learner.Config(
            optimizer=AdamW.Config(weight_decay=0.05),
            schedule=WarmupCosine.Config(peak=3e-3, warmup_steps=0.1),
        ),
        max_steps=1000,
        logging=LoggingConfig(every_steps=50),
        eval_every_steps=250,
        checkpoint=Checkpointer.Config(every_steps=250),
        # Kernels for accelerators are not made for float32.
        kernels=KernelsConfig(allow=("portable",)),
    )


def spoken_digits_chat() -> Trainer.Config:
    """Return the config of a small language model that answers questions about a spoken digit.

    Both parts are trained from random weights, on conversations about each sound. It reads bytes.
    It is a Voxtral, whose exports transformers reads.
    """
    tokenizer = ByteTokenizer.Config(special_tokens=(MARK,))
    text = transformer(
        vocab_size=tokenizer.build().vocab_size,
        dim=64,
        num_layers=2,
        num_heads=4,
        hidden_dim=192,
    )
    sound = WholeSound.Config(max_seconds=1.6, augment=SPEECH.augment)
    length = sound.num_samples // 320  # a token of the encoder is 20 ms
    model = update_config(
        voxtral(text, "toy"),
        {
            "encoder.features.num_bands": 40,
            "encoder.encoder.dim": 64,
            "encoder.**.attention.num_heads": 4,
            "encoder.**.hidden_dim": 256,
            "encoder.encoder.positions.length": length,
            "decoder.embedding.num_tokens": length // 4,
            "**.stack.unroll": 2,  # faster on CPUs than a loop
        },
    )
    chat = ChatText.Config(
        field="json",
        tokenizer=tokenizer,
        length=144,
        num_soft_tokens=length // 4,
        soft_token=MARK,
    )
    cfg = spoken_digits()
    return evolve(
        cfg,
        model=update_config(model, {"encoder.**.dropout.rate": 0.1}),
        task=None,
        data=evolve(
            cfg.data,
            source=SpokenDigitChats.Config(),
            validation_source=SpokenDigitChats.Config(speakers="held_out"),
            features={"sound": sound, "chat": chat},
        ),
        max_steps=1500,
        eval_every_steps=500,
    )


def whisper_large_v3() -> Trainer.Config:
    """Return Whisper large-v3, from random weights, by the recipe of large-v2.

    That of large-v3 is not published. Source: Radford et al. 2022, arXiv:2212.04356, tables 17 and
    18 (batch, steps, optimizer, rate, warm-up, masks). Differs: no stochastic depth, no dropout of
    merges of tokens, and no text before a row's own.
    """
    num_steps = 655_360
    masks = SpecAugment.Config(num_band_masks=1, num_time_masks=1)
    return Trainer.Config(
        model=evolve(whisper("large-v3"), augment=masks, dtypes=DTypes(compute="bfloat16")),
        data=ExampleData.Config(
            source=TarFiles.Config(),
            features={
                "sound": Audio.Config(field="flac", max_seconds=30.0),
                "text": Text.Config(
                    tokenizer=HuggingFaceTokenizer.Config(), length=448, has_frame=True
                ),
            },
            validation_fraction=0.01,
            batch_size=1024,
            num_workers=32,
        ),
        learner=Learner.Config(
            optimizer=AdamW.Config(b2=0.98, epsilon=1e-6, weight_decay=0.1),
            schedule=WarmupLinear.Config(
                peak=2e-4, warmup_steps=2048 / num_steps, final_fraction=0.0
            ),
            clip_norm=1.0,
        ),
        max_steps=num_steps,
        eval_every_steps=5000,
        checkpoint=Checkpointer.Config(every_steps=1000),
        mesh_rules=tuple(
            MeshRule(
                match=match,
                mesh={"data": -1, "fsdp": 8},
                modifiers=(RematModifier(policy="full"),),
            )
            for match in ("tpu-*", "gpu-*")
        ),
    )
