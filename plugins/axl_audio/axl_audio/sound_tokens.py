"""`SoundTokens`: sounds as soft tokens of a language model, and `WholeSound`, the feature for it.

Letters: B sounds, S samples of each, T tokens of the encoder, N soft tokens.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from axcore.config import REQUIRED, PositiveInt, config
from axcore.data import FeatureArray
from axcore.errors import ConfigError
from axcore.layers import Activation, Linear, activation_fn
from axcore.models import flops_per_token
from axcore.module import Module
from axl_audio.encoder import SpeechEncoder, StoredPositions
from axl_audio.features import LogMel, WhisperLogMel
from axl_audio.sound import Audio


class WholeSound(Audio):
    """The samples of a sound alone, for an encoder to which silence behind it is sound too."""

    part_type = "input_audio"

    @config
    class Config(Audio.Config):
        """Has the fields of its base."""

    def arrays(self) -> Mapping[str, FeatureArray]:
        """Return the samples."""
        return {"": FeatureArray((self.config.num_samples,), "float32")}

    def make(
        self, record: Mapping[str, Any], rng: np.random.Generator | None
    ) -> Mapping[str, NDArray[Any]]:
        """Return the samples, with zeros behind them."""
        return {"": super().make(record, rng)[""]}


class SoundTokens(Module):
    """Soft tokens of a sound: some tokens of its encoder side by side, and two products.

    Slot protocol: the parent fills `dim`.

    Source: Liu et al. 2025, "Voxtral", arXiv:2507.13264, section 2.
    """

    @config
    class Config(Module.Config["SoundTokens"]):
        """The config of a `SoundTokens`.

        Args:
            dim: Size of a token of the language model.
            features: From samples to frames.
            encoder: From frames to tokens; its `positions.length` is how long each sound is.
            num_stacked: Tokens of the encoder that one soft token is made of.
            activation: Between the products.
            linear: Both products.
        """

        sized_parts: ClassVar[tuple[str, ...]] = ("encoder",)

        dim: PositiveInt = REQUIRED
        features: LogMel.Config = WhisperLogMel.Config()
        encoder: SpeechEncoder.Config = REQUIRED
        num_stacked: PositiveInt = 4
        activation: Activation = "gelu"
        linear: Module.Config = Linear.Config()

        @property
        def num_samples(self) -> int:
            """S."""
            positions: Any = self.encoder.positions
            frames = positions.length * int(np.prod(self.encoder.subsampling.strides))
            return int(frames * self.features.hop)

        @property
        def num_tokens(self) -> int:
            """N."""
            positions: Any = self.encoder.positions
            return int(positions.length // self.num_stacked)

        def input_feature(self) -> WholeSound.Config:
            """Return the feature of data that decodes a sound for it."""
            rate = self.features.sample_rate
            return WholeSound.Config(sample_rate=rate, max_seconds=self.num_samples / rate)

    def setup(self, cfg: Config) -> None:
        """Build the encoder and the products.

        Raises:
            ConfigError: Sounds have no length, or their tokens do not divide by `num_stacked`.
        """
        encoder = cfg.encoder
        if not (encoder.sees_padding and isinstance(encoder.positions, StoredPositions.Config)):
            raise ConfigError(
                "the encoder does not say how long each sound is, or leaves out silence behind it",
                where="encoder",
                hint="that of `whisper(size)` has StoredPositions, and sees_padding=True",
            )
        if encoder.positions.length % cfg.num_stacked:
            raise ConfigError(
                f"positions.length is {encoder.positions.length}, not a multiple of num_stacked, "
                f"{cfg.num_stacked}",
                where="encoder.positions.length",
                hint=f"set it to {cfg.num_stacked * max(1, cfg.num_tokens)}",
            )
        self.features = cfg.features.build()
        self.encoder = encoder.build(in_dim=cfg.features.num_bands)
        self.num_tokens = cfg.num_tokens
        stacked = cfg.num_stacked * encoder.dim
        self.up = cfg.linear.build(in_dim=stacked, out_dim=cfg.dim, axes=("embed", "mlp"))
        self.down = cfg.linear.build(in_dim=cfg.dim, out_dim=cfg.dim, axes=("mlp", "embed"))

    @property
    def input_spec(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of one sound: samples."""
        return jax.ShapeDtypeStruct((self.config.num_samples,), jnp.float32)  # type: ignore[no-untyped-call]

    @property
    def flops_per_input(self) -> float:
        """Model FLOPs of a sound, forward and backward; those of features are left out."""
        # A token sees all others, where `flops_per_token` counts half, as if causal.
        length = self.num_tokens * self.config.num_stacked
        products = flops_per_token(self.up, 0) + flops_per_token(self.down, 0)
        return flops_per_token(self.encoder, 2 * length) * length + products * self.num_tokens

    def forward(self, sound: Float[Array, "B S"]) -> Float[Array, "B N dim"]:
        """Return the soft tokens of each sound."""
        whole = jnp.full(sound.shape[:1], sound.shape[1], jnp.int32)
        tokens, _ = self.encoder(self.features(sound, whole))
        stacked = tokens.reshape(len(sound), self.num_tokens, -1)
        return self.down(activation_fn(self.config.activation)(self.up(stacked)))
