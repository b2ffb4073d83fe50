"""Features that are learned from samples, and what wav2vec 2.0 makes tokens of them with.

Letters: B rows, S samples, T frames, C channels, D size of a token, K places of a kernel.
"""

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from axcore.config import NonNegativeInt, PositiveInt, config
from axcore.errors import ConfigError, ModuleError
from axcore.layers import (
    Activation,
    Convolution,
    Dropout,
    GroupNorm,
    LayerNorm,
    Linear,
    activation_fn,
)
from axcore.module import Module, Normal, Param
from axl_audio.encoder import Encoded, FrameTokens, Positions, Tokens
from axl_audio.features import Features, Lengths, Sound, SoundFeatures, random_masks


class WaveformFeatures(SoundFeatures):
    """Convolutions over samples, without zeros at the ends: a frame is of real samples alone.

    Differs from transformers: where rows have padding, the group norm has the moments of the real
    frames, so that padding changes no frame.

    Source: Baevski et al. 2020, arXiv:2006.11477, section 2; layer norm: Ott et al., `fairseq`.
    """

    @config
    class Config(SoundFeatures.Config):
        """The config of a `WaveformFeatures`.

        Args:
            dims: Channels of the convolutions, one after the other.
            kernel_sizes: Of the same.
            strides: Of the same.
            has_bias: Whether they add biases.
            norm: `group`: behind the first convolution each channel is normalised over the row.
                `layer`: behind each convolution, each frame over its channels.
            activation: Behind each of them.
            normalizes: Whether the real samples of a row have mean 0 and variance 1 first.
        """

        dims: tuple[PositiveInt, ...] = (512,) * 7
        kernel_sizes: tuple[PositiveInt, ...] = (10, 3, 3, 3, 3, 2, 2)
        strides: tuple[PositiveInt, ...] = (5, 2, 2, 2, 2, 2, 2)
        has_bias: bool = False
        norm: Literal["group", "layer"] = "group"
        activation: Activation = "gelu"
        normalizes: bool = True

        @property
        def size(self) -> int:
            """Numbers of a frame, C of the last convolution."""
            return self.dims[-1]

        @property
        def step(self) -> int:
            """Samples from a frame to the next."""
            return math.prod(self.strides)

        @property
        def window(self) -> int:
            """Samples that a frame is of."""
            size = 1
            for kernel_size, stride in reversed(
                list(zip(self.kernel_sizes, self.strides, strict=True))
            ):
                size = (size - 1) * stride + kernel_size
            return size

        def num_frames(self, num_samples: int) -> int:
            """Return T, from S."""
            return max(0, (num_samples - self.window) // self.step + 1)

    def setup(self, cfg: Config) -> None:
        """Build convolutions and norms.

        Raises:
            ConfigError: There are other numbers of channels, kernels and strides.
        """
        counts = {len(cfg.dims), len(cfg.kernel_sizes), len(cfg.strides)}
        if len(counts) != 1 or not cfg.dims:
            raise ConfigError(
                f"dims, kernel_sizes and strides have {len(cfg.dims)}, {len(cfg.kernel_sizes)} and "
                f"{len(cfg.strides)} values",
                where="features",
                hint="dims=(512, 512), kernel_sizes=(10, 3), strides=(5, 2) are two convolutions",
            )
        self.convolution = tuple(
            Convolution.Config(
                kernel_size=(kernel_size,),
                stride=(stride,),
                padding="valid",
                has_bias=cfg.has_bias,
                axes=(None, "embed"),
            ).build(in_dim=in_dim, out_dim=out_dim)
            for in_dim, out_dim, kernel_size, stride in zip(
                (1, *cfg.dims), cfg.dims, cfg.kernel_sizes, cfg.strides, strict=False
            )
        )
        if cfg.norm == "group":
            self.norm = (GroupNorm.Config(num_groups=cfg.dims[0]).build(dim=cfg.dims[0]),)
        else:
            self.norm = tuple(LayerNorm.Config().build(dim=dim) for dim in cfg.dims)

    def forward(self, sound: Sound, length: Lengths) -> Features:
        """Return the frames, in the dtype that the model computes in.

        Raises:
            ModuleError: Rows are shorter than a frame.
        """
        cfg: Any = self.config
        if not cfg.num_frames(sound.shape[1]):
            raise ModuleError(
                f"sounds have {sound.shape[1]} samples, and a frame is of {cfg.window}",
                hint=f"give {cfg.window} samples or more, padded with zeros",
            )
        activation = activation_fn(cfg.activation)
        x = self._normalized(sound, length).astype(self.dtypes.compute)[..., None]
        is_real = _is_before(sound.shape[1], length)
        for number, convolution in enumerate(self.convolution):
            x = convolution(x)
            kernel_size, stride = cfg.kernel_sizes[number], cfg.strides[number]
            length = (length - kernel_size) // stride + 1
            is_real = _is_before(x.shape[1], length)
            if cfg.norm == "layer":
                x = self.norm[number](x)
            elif number == 0:
                x = self.norm[0](x, is_real)
            x = activation(x)
        return Features(x, is_real)

    def _normalized(self, sound: Sound, length: Lengths) -> Sound:
        """Return samples in float32, zeros for padding."""
        is_real = _is_before(sound.shape[1], length)
        sound = jnp.where(is_real, sound.astype(jnp.float32), 0)
        if not self.config.normalizes:
            return sound
        count = jnp.maximum(length, 1).astype(jnp.float32)[:, None]
        centred = jnp.where(is_real, sound - jnp.sum(sound, axis=1, keepdims=True) / count, 0)
        variance = jnp.sum(jnp.square(centred), axis=1, keepdims=True) / count
        return centred * jax.lax.rsqrt(variance + 1e-7)


def _is_before(size: int, length: Lengths) -> Bool[Array, "batch size"]:
    return jnp.arange(size, dtype=jnp.int32)[None, :] < length[:, None]


class FeatureProjection(FrameTokens):
    """A token of each frame: a norm, a product, and zeros for padding.

    In training, random stretches of tokens can become one learned vector.

    Source: Baevski et al. 2020, arXiv:2006.11477, sections 2 and 3.1.
    """

    @config
    class Config(FrameTokens.Config):
        """The config of a `FeatureProjection`.

        Args:
            norm: Before the product.
            linear: The product.
            dropout: Behind it.
            has_mask_vector: Whether there is a vector for hidden tokens.
            num_time_masks: Stretches of a row that are hidden in training.
            max_tokens: Tokens that one of them hides, at most.
        """

        norm: Module.Config = LayerNorm.Config()
        linear: Module.Config = Linear.Config(has_bias=True)
        dropout: Dropout.Config = Dropout.Config()
        has_mask_vector: bool = True
        num_time_masks: NonNegativeInt = 0
        max_tokens: PositiveInt = 10

    def setup(self, cfg: Config) -> None:
        """Build the norm and the product; declare the vector.

        Raises:
            ConfigError: Tokens are to be hidden, and there is no vector for them.
        """
        if cfg.num_time_masks and not cfg.has_mask_vector:
            raise ConfigError(
                f"num_time_masks is {cfg.num_time_masks}, and there is no vector for hidden tokens",
                where="encoder.subsampling.num_time_masks",
                hint="has_mask_vector=True, or num_time_masks=0",
            )
        self.norm = cfg.norm.build(dim=cfg.in_dim)
        self.linear = cfg.linear.build(in_dim=cfg.in_dim, out_dim=cfg.dim, axes=(None, "embed"))
        self.dropout = cfg.dropout.build()
        if cfg.has_mask_vector:
            self.mask_vector = Param((cfg.dim,), axes=("embed",), init=Normal(std=0.5), decay=False)
            self.inactive_params = cfg.dim

    def forward(self, features: Features) -> Encoded:
        """Return a token of each frame."""
        cfg: Any = self.config
        frames, is_real = features
        x = self.dropout(self.linear(self.norm(frames)))
        if self.training and cfg.num_time_masks:
            lengths = jnp.sum(is_real, axis=1, keepdims=True, dtype=jnp.int32)
            most = jnp.minimum(lengths, cfg.max_tokens)
            key = self.rng("time_masks")
            is_hidden = random_masks(key, x.shape[1], lengths, most, cfg.num_time_masks)
            vector = self.mask_vector.astype(x.dtype)[None, None]
            x = jnp.where(is_hidden[..., None], vector, x)
        return Encoded(jnp.where(is_real[..., None], x, 0), is_real)


class ConvolutionalPositions(Positions):
    """Adds what a wide convolution of tokens sees; its kernel is a direction times a scale.

    Padding is zero as it comes, so it counts as what is past the ends.

    Source: Baevski et al. 2020, arXiv:2006.11477, section 2 (Transformer); weight norm: Salimans
    and Kingma 2016, arXiv:1602.07868, eq. 2.
    """

    @config
    class Config(Positions.Config):
        """The config of a `ConvolutionalPositions`.

        Args:
            kernel_size: K.
            num_groups: Groups of channels that are convolved on their own.
            activation: Behind the convolution.
            norm: Of the sum, if there is one.
        """

        kernel_size: PositiveInt = 128
        num_groups: PositiveInt = 16
        activation: Activation = "gelu"
        norm: Module.Config | None = None

    def setup(self, cfg: Config) -> None:
        """Declare the kernel, and build the norm.

        Raises:
            ConfigError: Groups do not divide the token.
        """
        if cfg.dim % cfg.num_groups:
            raise ConfigError(
                f"dim is {cfg.dim}, not a multiple of num_groups, {cfg.num_groups}",
                where="encoder.positions.num_groups",
                hint=f"num_groups={math.gcd(cfg.dim, cfg.num_groups)}",
            )
        shape = (cfg.kernel_size, cfg.dim // cfg.num_groups, cfg.dim)
        std = 2 / math.sqrt(cfg.kernel_size * cfg.dim)
        self.direction = Param(shape, axes=(None, None, "embed"), init=Normal(std=std))
        # As long as the directions are on average, so that the kernel is about as drawn.
        length = std * math.sqrt(shape[1] * shape[2])
        self.scale = Param((cfg.kernel_size,), axes=(None,), init=length, decay=False)
        self.bias = Param((cfg.dim,), axes=("embed",), init=0.0)
        if cfg.norm is not None:
            self.norm = cfg.norm.build(dim=cfg.dim)

    def forward(self, x: Tokens) -> Tokens:
        """Return tokens that know their place."""
        cfg: Any = self.config
        before = cfg.kernel_size // 2
        y = jax.lax.conv_general_dilated(
            x,
            self._kernel().astype(x.dtype),
            window_strides=(1,),
            padding=((before, cfg.kernel_size - 1 - before),),
            feature_group_count=cfg.num_groups,
            dimension_numbers=("NTC", "TIO", "NTC"),
        )
        x = x + activation_fn(cfg.activation)(y + self.bias.astype(x.dtype)[None, None])
        return x if cfg.norm is None else self.norm(x)

    def _kernel(self) -> Float[Array, "K C D"]:
        direction = self.direction.astype(jnp.float32)
        length = jnp.sqrt(jnp.sum(jnp.square(direction), axis=(1, 2), keepdims=True))
        return direction / length * self.scale.astype(jnp.float32)[:, None, None]
