"""`SpeechEncoder`: frames of features become fewer, and see one another; `CTCModel` spells them.

Letters: B rows, T frames, D size of a token.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from axcore.config import REQUIRED, PositiveInt, config
from axcore.data import CharacterTokenizer, ExampleData, SampleFiles, Text
from axcore.errors import ConfigError
from axcore.interop import CheckpointInfo
from axcore.layers import (
    Activation,
    Convolution,
    Dropout,
    LayerNorm,
    Linear,
    ScannedLayers,
    TransformerLayer,
    activation_fn,
    shard,
    whole_rows,
)
from axcore.models import flops_per_token
from axcore.module import BatchSpec, Initializer, ModelFlops, Module, Param
from axcore.tasks import CTC
from axl_audio.features import Features, LogMel, SoundFeatures, SpecAugment
from axl_audio.sound import Audio

Tokens = Float[Array, "batch time dim"]


class Encoded(NamedTuple):
    """What an encoder makes of sounds.

    Args:
        tokens: `[B, T, D]`, fewer than there were frames.
        is_real: Which of them are not padding, `[B, T]`.
    """

    tokens: Tokens
    is_real: Bool[Array, "batch time"]


class FrameTokens(Module):
    """From frames to tokens; abstract. Slot protocol: the parent fills `in_dim` and `dim`.

    A subclass says how: `forward(features)`.
    """

    @config
    class Config(Module.Config["FrameTokens"]):
        """The config of what makes tokens of frames.

        Args:
            in_dim: Features of a frame.
            dim: Size of a token.
            strides: Frames of a token, as the product of these.
        """

        in_dim: PositiveInt = REQUIRED
        dim: PositiveInt = REQUIRED
        strides: tuple[PositiveInt, ...] = ()

        def num_tokens(self, num_frames: int) -> int:
            """Return how many tokens there are of so many frames."""
            for stride in self.strides:
                num_frames = -(-num_frames // stride)
            return num_frames

    def forward(self, features: Features) -> Encoded:
        """Return the tokens, and which of them are of real frames."""
        raise NotImplementedError(f"{type(self).__qualname__} makes no tokens")


class Subsampling(FrameTokens):
    """Convolutions over time that make fewer tokens of frames, with an activation behind each.

    Token i is around frame `i * stride`, whatever the number of frames, so padding changes no other
    token. Slot protocol: the parent fills `in_dim` and `dim`.

    Source: Radford et al. 2022, arXiv:2212.04356, section 2.2.
    """

    @config
    class Config(FrameTokens.Config):
        """The config of a `Subsampling`.

        Args:
            strides: Of the convolutions, one after the other.
            activation: Behind each of them.
        """

        strides: tuple[PositiveInt, ...] = (1, 2)
        activation: Activation = "gelu"

    def setup(self, cfg: Config) -> None:
        """Build the convolutions."""
        if not cfg.strides:
            raise ConfigError(
                "strides is empty", where="subsampling.strides", hint="strides=(1, 2), as Whisper"
            )
        sizes = (cfg.in_dim, *(cfg.dim for _ in cfg.strides))
        self.convolution = tuple(
            Convolution.Config(
                # As many zeros on both sides: "same" would depend on the number of frames.
                kernel_size=(3,),
                stride=(stride,),
                padding=((1, 1),),
                axes=(None, "embed"),
            ).build(in_dim=size, out_dim=cfg.dim)
            for stride, size in zip(cfg.strides, sizes, strict=False)
        )

    def forward(self, features: Features) -> Encoded:
        """Return the tokens, and which of them are of real frames."""
        x, is_real = features
        for convolution, stride in zip(self.convolution, self.config.strides, strict=True):
            x = activation_fn(self.config.activation)(convolution(x, is_real))
            is_real = is_real[:, ::stride]
        return Encoded(x, is_real)


def sinusoids(length: int, dim: int) -> np.ndarray:
    """Return a vector of sines and cosines for each position, `[length, dim]`.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5, with all sines before all cosines,
    as Whisper has them.
    """
    steps = np.log(10_000) / max(1, dim // 2 - 1)
    angles = np.arange(length)[:, None] * np.exp(-steps * np.arange(dim // 2))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


class Positions(Module):
    """Adds sinusoids, for any length; there is no state. Slot protocol: the parent fills `dim`."""

    @config
    class Config(Module.Config["Positions"]):
        """The config of positions."""

        dim: PositiveInt = REQUIRED

    def forward(self, x: Tokens) -> Tokens:
        """Return tokens that know their place."""
        return x + sinusoids(*x.shape[1:])[None].astype(x.dtype)


@config
class SinusoidInit(Initializer):
    """The sinusoids, whatever the key."""

    def sample(self, key: Array, shape: tuple[int, ...], fans: tuple[int, int]) -> Array:
        """Return a vector for each position."""
        return jnp.asarray(sinusoids(*shape))


class StoredPositions(Positions):
    """Adds vectors that are stored with the weights and never trained, sinusoids at first."""

    @config
    class Config(Positions.Config):
        """The config of a `StoredPositions`.

        Args:
            length: Of the longest row, in tokens.
        """

        length: PositiveInt = REQUIRED

    def setup(self, cfg: Config) -> None:
        """Declare the vectors."""
        self.weight = Param(
            (cfg.length, cfg.dim), axes=(None, "embed"), init=SinusoidInit(), is_buffer=True
        )

    def forward(self, x: Tokens) -> Tokens:
        """Return tokens that know their place."""
        return x + self.weight[None, : x.shape[1]].astype(x.dtype)


class SpeechEncoder(Module):
    """From features to tokens, each of which sees all others of its row that are not padding.

    Slot protocol: the parent fills `in_dim`.

    Source: Radford et al. 2022, arXiv:2212.04356, section 2.2.
    """

    @config
    class Config(Module.Config["SpeechEncoder"]):
        """The config of a `SpeechEncoder`.

        Args:
            in_dim: Features of a frame.
            dim: D.
            subsampling: From frames to tokens.
            positions: Adds a vector for each place.
            dropout: Applied to the tokens.
            stack: The layers.
            norm: The norm behind the last layer.
            sees_padding: Whether padding counts as sound, as in Whisper, whose rows all have thirty
                seconds.
        """

        in_dim: PositiveInt = REQUIRED
        dim: PositiveInt = REQUIRED
        subsampling: FrameTokens.Config = Subsampling.Config()
        positions: Positions.Config = Positions.Config()
        dropout: Dropout.Config = Dropout.Config()
        stack: Module.Config = ScannedLayers.Config(layer=TransformerLayer.Config())
        norm: Module.Config = LayerNorm.Config()
        sees_padding: bool = False

    def setup(self, cfg: Config) -> None:
        """Build the parts."""
        self.subsampling = cfg.subsampling.build(in_dim=cfg.in_dim, dim=cfg.dim)
        self.positions = cfg.positions.build(dim=cfg.dim)
        self.dropout = cfg.dropout.build()
        self.stack = cfg.stack.build(dim=cfg.dim)
        self.norm = cfg.norm.build(dim=cfg.dim)

    def forward(self, features: Features) -> Encoded:
        """Return a normalised vector for each token."""
        if self.config.sees_padding:
            features = features._replace(is_real=jnp.ones_like(features.is_real))
        x, is_real = self.subsampling(features)
        x = shard(self.dropout(self.positions(x)), "batch", "time", "embed")
        info = whole_rows(x, None if self.config.sees_padding else is_real)
        return Encoded(self.norm(self.stack(x, info)), is_real)


MAX_SECONDS = 30.0
"""Of a sound that a pretrained checkpoint with CTC reads, which itself has no limit."""

_MAX_CHARACTERS = 600


class CTCModel(Module):
    """Features, an encoder, and logits of each of its tokens; for the task `CTC`.

    Source: Graves et al. 2006, "Connectionist Temporal Classification", ICML, section 2.
    """

    @config
    class Config(Module.Config["CTCModel"]):
        """The config of a `CTCModel`.

        Args:
            vocab_size: Number of logits, the blank's among them.
            features: From samples to frames.
            augment: Hides parts of the frames in training.
            encoder: From frames to tokens.
            head: From tokens to logits.
            published: The pretrained checkpoint that this model was read from.
        """

        vocab_size: PositiveInt = REQUIRED
        features: SoundFeatures.Config = LogMel.Config()
        augment: SpecAugment.Config = SpecAugment.Config()
        encoder: SpeechEncoder.Config = REQUIRED
        head: Module.Config = Linear.Config(has_bias=True)
        published: CheckpointInfo | None = None

        def trainer_fields(self, tokenizer: Any) -> dict[str, Any]:
            """Return what a trainer of a pretrained checkpoint has, with the current folder's data.

            Args:
                tokenizer: The config of its tokenizer, whose pad token is the blank.

            Raises:
                ConfigError: It is not of characters.
            """
            if not isinstance(tokenizer, CharacterTokenizer.Config):
                raise ConfigError(
                    f"the checkpoint's tokenizer is a {type(tokenizer).__qualname__}; models with "
                    "CTC are read with characters by a vocab.json",
                    where="tokenizer",
                    hint="name a folder with a vocab.json, as Wav2Vec2CTCTokenizer writes it",
                )
            known = tokenizer.build()
            sound = Audio.Config(sample_rate=self.features.sample_rate, max_seconds=MAX_SECONDS)
            text = Text.Config(tokenizer=tokenizer, length=_MAX_CHARACTERS)
            return {
                "task": CTC.Config(blank=known.pad_id, separator=known.separator_id),
                "data": ExampleData.Config(
                    source=SampleFiles.Config(folder="."),
                    features={"sound": sound, "text": text},
                ),
            }

    def setup(self, cfg: Config) -> None:
        """Build the parts."""
        self.features = cfg.features.build()
        self.augment = cfg.augment.build()
        self.encoder = cfg.encoder.build(in_dim=cfg.features.size)
        self.head = cfg.head.build(
            in_dim=cfg.encoder.dim, out_dim=cfg.vocab_size, axes=("embed", "vocab")
        )

    def forward(
        self, sound: Float[Array, "batch samples"], length: Int[Array, " batch"]
    ) -> tuple[Float[Array, "batch time vocab"], Bool[Array, "batch time"]]:
        """Return logits of each frame that is left, and which of them are not padding.

        Args:
            sound: `[B, S]` samples.
            length: How many of each row are not padding.
        """
        tokens, is_real = self.encoder(self.augment(self.features(sound, length)))
        return self.head(tokens), is_real

    def flops_per_unit(self, batch: BatchSpec) -> ModelFlops | None:
        """Return the model FLOPs of a row, forward and backward."""
        return sound_flops(self, batch)


def sound_flops(model: Any, batch: BatchSpec) -> ModelFlops | None:
    """Return the FLOPs of a row as if all of a model ran once for each token of its sound.

    So those of features are left out, the first convolutions count less than they cost, and a
    decoder, whose text is shorter, counts more.
    """
    # Its samples are the one array of floats that has more than a number for each row.
    sounds = [one for one in batch.arrays.values() if len(one.shape) == 2]
    lengths = [one.shape[1] for one in sounds if one.dtype == "float32"]
    if not lengths:
        return None
    cfg = model.config
    num_tokens = cfg.encoder.subsampling.num_tokens(cfg.features.num_frames(lengths[0]))
    # A token sees all others, where a causal one sees half of them on average: twice the length.
    per_token = flops_per_token(model, 2 * num_tokens)
    return ModelFlops(per_token * num_tokens, "6 N T + 12 T^2 d per attention layer")
