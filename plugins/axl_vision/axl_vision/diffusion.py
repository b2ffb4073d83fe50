"""`DiT`: a transformer that generates pictures, from noise, by class.

It is a stack of the core's layers. What it is to draw, the time and the class as one vector, is a
shared value that `AdaptiveResidual`, in the slot of the residual connection, reads; layers know
nothing of it. So whatever changes those layers (scan, recomputation, low precision, adapters) does
so here too.

Letters: B rows, H and W height and width, C channels of a picture, T tokens, D size of a token.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from axcore.config import (
    REQUIRED,
    Fraction,
    PositiveFloat,
    PositiveInt,
    config,
    evolve,
    update_config,
)
from axcore.errors import ConfigError, ModuleError
from axcore.layers import (
    Embedding,
    Linear,
    PatchEmbedding,
    Residual,
    TransformerLayer,
    encoder_layer,
    shard,
    whole_rows,
)
from axcore.module import BatchSpec, ConstantInit, DTypes, ModelFlops, Module, Normal, entry
from axcore.tasks import GenerativeModel
from axl_vision.encoder import NormalizePixels, Pixels, image_flops

CONDITION = "condition"
"""The shared value that `AdaptiveResidual` reads: a vector for each row, `[B, D]`."""

_TIME_SCALE = 1000.0
"""Waves are made for the 1000 steps of a diffusion model; time is in [0, 1]."""

Tokens = Float[Array, "batch time dim"]
Vector = Float[Array, "batch dim"]
Latents = Float[Array, "batch height width channels"]

_ZERO_LINEAR = Linear.Config(has_bias=True, weight_init=ConstantInit(value=0.0))
"""Says nothing at first, so that every layer begins as the identity."""


class Standardize(Module):
    """`(x - mean) / sqrt(variance + epsilon)`: a `LayerNorm` without parameters."""

    @config
    class Config(Module.Config["Standardize"]):
        """The config of a `Standardize`.

        Args:
            dim: Size of the last dimension; filled by the parent.
            epsilon: Added to the variance.
        """

        dim: PositiveInt = REQUIRED
        epsilon: PositiveFloat = 1e-6

    def forward(self, x: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
        """Return the normalised input in the input's dtype."""
        # In 16 bits a sum over a long row would lose most of its digits.
        normed = jax.nn.standardize(x.astype(jnp.float32), epsilon=self.config.epsilon)
        return normed.astype(x.dtype)


class Modulation(Module):
    """Vectors that scale and shift tokens, from the row's condition. Slot protocol: as `Residual`.

    Source: Peebles and Xie 2022, arXiv:2212.09748, section 3.2 (adaLN-Zero).
    """

    @config
    class Config(Module.Config["Modulation"]):
        """The config of a `Modulation`.

        Args:
            dim: D.
            num_vectors: How many vectors there are.
            linear: Makes them; zero at first.
        """

        dim: PositiveInt = REQUIRED
        num_vectors: PositiveInt = REQUIRED
        linear: Module.Config = _ZERO_LINEAR

    def setup(self, cfg: Config) -> None:
        """Build the projection."""
        self.linear = cfg.linear.build(
            in_dim=cfg.dim, out_dim=cfg.num_vectors * cfg.dim, axes=("embed", None)
        )

    def forward(self) -> tuple[Float[Array, "batch 1 dim"], ...]:
        """Return the vectors, `[B, 1, D]` each.

        Raises:
            ModuleError: Nothing around the layer said what to draw.
        """
        condition = self.get_shared(CONDITION)
        if condition is None:
            raise ModuleError(
                "a layer that is conditioned on a vector of the row runs without one",
                hint="set it around the stack: with self.with_shared(CONDITION, vector)",
            )
        vectors = self.linear(jax.nn.silu(condition))[:, None, :]
        return tuple(jnp.split(vectors, self.config.num_vectors, axis=-1))


class AdaptiveResidual(Residual):
    """`x + gate * branch(norm(x) * (1 + scale) + shift)`, all three from the row's condition.

    Source: Peebles and Xie 2022, arXiv:2212.09748, section 3.2 (adaLN-Zero).
    """

    @config
    class Config(Residual.Config):
        """The config of an `AdaptiveResidual`.

        Args:
            modulation: Makes shift, scale and gate.
        """

        norm: Module.Config = Standardize.Config()
        modulation: Module.Config = Modulation.Config(num_vectors=3)

    def setup(self, cfg: Any) -> None:
        """Build norm, dropout and modulation."""
        super().setup(cfg)
        self.modulation = cfg.modulation.build(dim=cfg.dim)

    def forward(self, x: Tokens, branch: Callable[[Tokens], Tokens]) -> Tokens:
        """Return the input with what the branch makes of it added."""
        shift, scale, gate = self.modulation()
        return x + gate * self.dropout(branch(self.norm(x) * (1 + scale) + shift))


class TimeEmbedding(Module):
    """Sines and cosines of a time in [0, 1], then a small network.

    Source: Nichol and Dhariwal 2021, arXiv:2102.09672; Peebles and Xie 2022, arXiv:2212.09748,
    appendix A.
    """

    @config
    class Config(Module.Config["TimeEmbedding"]):
        """The config of a `TimeEmbedding`.

        Args:
            dim: D.
            num_waves: Sines, and as many cosines.
            longest: Length of the longest wave, in thousandths of the time, divided by 2 pi.
            linear: Used for both projections.
        """

        dim: PositiveInt = REQUIRED
        num_waves: PositiveInt = 128
        longest: PositiveFloat = 10_000.0
        linear: Module.Config = Linear.Config(has_bias=True, weight_init=Normal(std=0.02))

    def setup(self, cfg: Config) -> None:
        """Build the two projections."""
        self.up = cfg.linear.build(in_dim=2 * cfg.num_waves, out_dim=cfg.dim, axes=(None, "embed"))
        self.out = cfg.linear.build(in_dim=cfg.dim, out_dim=cfg.dim, axes=("embed", None))

    def forward(self, time: Float[Array, " batch"]) -> Vector:
        """Return a vector for each time."""
        cfg = self.config
        powers = np.arange(cfg.num_waves, dtype=np.float32) / cfg.num_waves
        rates = jnp.asarray(_TIME_SCALE * cfg.longest**-powers, jnp.float32)
        # In float32: a thousand, which 16 bits round to fours, is the argument of a sine.
        angles = time.astype(jnp.float32)[:, None] * rates[None, :]
        waves = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)
        return self.out(jax.nn.silu(self.up(waves.astype(self.dtypes.compute))))


class ClassEmbedding(Module):
    """A vector for each class, and one for none of them, which training draws now and then.

    Source: Ho and Salimans 2022, arXiv:2207.12598, algorithm 1.
    """

    @config
    class Config(Module.Config["ClassEmbedding"]):
        """The config of a `ClassEmbedding`.

        Args:
            num_classes: How many classes there are; the number of no class.
            dim: D.
            drop_rate: Probability with which training takes a row's class from it.
            embedding: The table of vectors.
        """

        num_classes: PositiveInt = REQUIRED
        dim: PositiveInt = REQUIRED
        drop_rate: Fraction = 0.1
        embedding: Module.Config = Embedding.Config()

    def setup(self, cfg: Config) -> None:
        """Build the table."""
        self.embedding = cfg.embedding.build(vocab_size=cfg.num_classes + 1, dim=cfg.dim)

    def forward(self, classes: Int[Array, " batch"]) -> Vector:
        """Return the vector of each row's class."""
        cfg = self.config
        if self.training and cfg.drop_rate:
            is_dropped = jax.random.bernoulli(self.rng("class"), cfg.drop_rate, classes.shape)
            classes = jnp.where(is_dropped, jnp.asarray(cfg.num_classes, classes.dtype), classes)
        return self.embedding(classes)


def dit_layer(*, num_heads: int, hidden_dim: int) -> TransformerLayer.Config:
    """Return a layer in which each token sees all others, modulated by the row's condition.

    Source: Peebles and Xie 2022, arXiv:2212.09748, figure 3.
    """
    layer = encoder_layer(num_heads=num_heads, hidden_dim=hidden_dim)
    layer = update_config(layer, {"feed_forward.activation": "gelu_tanh"})
    return evolve(layer, residual=AdaptiveResidual.Config())


class DiT(GenerativeModel):
    """A transformer that predicts velocities of noisy pictures, as `FlowMatching` trains it.

    As the root of a tree it takes its own sizes. Source: Peebles and Xie 2022, arXiv:2212.09748.
    """

    @config
    class Config(GenerativeModel.Config["DiT"]):
        """The config of a `DiT`.

        Args:
            dim: D.
            height: H, pixels.
            width: W, pixels.
            num_classes: Of pictures.
            pixels: Makes floats of bytes, which `from_latents` makes bytes of again.
            patches: Makes tokens of a picture.
            time: Makes a vector of the time.
            classes: Makes a vector of the class.
            stack: The layers.
            norm: The norm behind the last layer.
            out_modulation: Scales and shifts what that returns.
            out_linear: Makes the pixels of a patch of a token; zero at first.
        """

        dim: PositiveInt = REQUIRED
        height: PositiveInt = REQUIRED
        width: PositiveInt = REQUIRED
        num_classes: PositiveInt = REQUIRED
        # In float32 whatever the layers compute in: noise is added to them, and they are compared.
        pixels: NormalizePixels.Config = NormalizePixels.Config(dtypes=DTypes(compute="float32"))
        patches: PatchEmbedding.Config = PatchEmbedding.Config()
        time: TimeEmbedding.Config = TimeEmbedding.Config()
        classes: ClassEmbedding.Config = ClassEmbedding.Config()
        stack: Module.Config = REQUIRED
        norm: Module.Config = Standardize.Config()
        out_modulation: Module.Config = Modulation.Config(num_vectors=2)
        out_linear: Module.Config = _ZERO_LINEAR

    def setup(self, cfg: Config) -> None:
        """Build the parts."""
        size, channels = cfg.patches.patch_size, cfg.patches.num_channels
        if cfg.height % size or cfg.width % size:
            raise ConfigError(
                f"pictures have {cfg.height} x {cfg.width} pixels, and patches {size} x {size}, "
                "which do not divide them",
                where="patches.patch_size",
                hint=f"set patches.patch_size to {math.gcd(cfg.height, cfg.width)}",
            )
        if cfg.dim % 4:
            raise ConfigError(
                f"dim is {cfg.dim}; places of tokens are a quarter sines and cosines by row and by "
                "column each",
                where="dim",
                hint=f"dim={-(-cfg.dim // 4) * 4}",
            )
        self.grid = (cfg.height // size, cfg.width // size)
        self.pixels = cfg.pixels.build()
        self.patches = cfg.patches.build(dim=cfg.dim)
        self.time = cfg.time.build(dim=cfg.dim)
        self.classes = cfg.classes.build(dim=cfg.dim, num_classes=cfg.num_classes)
        self.stack = cfg.stack.build(dim=cfg.dim)
        self.norm = cfg.norm.build(dim=cfg.dim)
        self.out_modulation = cfg.out_modulation.build(dim=cfg.dim)
        self.out_linear = cfg.out_linear.build(
            in_dim=cfg.dim, out_dim=size * size * channels, axes=("embed", None)
        )
        # Times and modulations are computed once for a row, not for each of its tokens.
        by_row = {"time", "modulation", "out_modulation"}
        specs = [*jax.tree.leaves(self.param_specs())]
        num_by_row = sum(math.prod(one.shape) for one in specs if by_row.intersection(one.path))
        self.inactive_params = num_by_row * (1 - 1 / math.prod(self.grid))

    @property
    def latent_shape(self) -> tuple[int, int, int]:
        """Of one picture: H, W and C."""
        cfg = self.config
        return cfg.height, cfg.width, cfg.patches.num_channels

    def forward(
        self, latents: Latents, time: Float[Array, " batch"], classes: Int[Array, " batch"]
    ) -> Latents:
        """Return the velocity of each number of the latents.

        Args:
            latents: Noisy pictures.
            time: How far each is on the way from noise, 0, to a picture, 1.
            classes: The class of each; `num_classes` is none of them.

        Raises:
            ModuleError: Latents have another shape than the config says.
        """
        if latents.shape[1:] != self.latent_shape:
            raise ModuleError(
                f"latents have the shape {list(latents.shape[1:])}; those of this model have "
                f"{list(self.latent_shape)}",
                hint="height, width and patches.num_channels of the model say what it draws",
            )
        x = self.patches(latents.astype(self.dtypes.compute))
        places = jnp.asarray(places_2d(*self.grid, self.config.dim), x.dtype)
        x = shard(x + places[None], "batch", "time", "embed")
        with self.with_shared(CONDITION, self.time(time) + self.classes(classes)):
            x = self.stack(x, whole_rows(x))
            shift, scale = self.out_modulation()
        patches = self.out_linear(self.norm(x) * (1 + scale) + shift)
        return self._picture(patches).astype(jnp.float32)

    def _picture(self, patches: Tokens) -> Latents:
        """Return the picture of patches: what `PatchEmbedding` reads, put back."""
        (rows, columns), size = self.grid, self.config.patches.patch_size
        tiles = patches.reshape(len(patches), rows, columns, size, size, -1)
        return tiles.swapaxes(2, 3).reshape(len(patches), *self.latent_shape)

    @entry
    def to_latents(self, data: Pixels) -> Latents:
        """Return pictures as floats around zero."""
        return self.pixels(data)

    @entry
    def from_latents(self, latents: Latents) -> Int[Array, "batch height width channels"]:
        """Return pictures as bytes."""
        return self.pixels.to_bytes(latents)

    def check_batch(self, batch: BatchSpec) -> None:
        """Check that there are no more classes in the data than in the config.

        Raises:
            ConfigError: There are more.
        """
        for name, spec in batch.arrays.items():
            if len(spec.shape) == 1 and (spec.num_values or 0) > self.config.num_classes:
                raise ConfigError(
                    f"{name} numbers {spec.num_values} classes; num_classes is "
                    f"{self.config.num_classes}",
                    where="model.num_classes",
                    hint=f"--set model.num_classes={spec.num_values}",
                )

    def flops_per_unit(self, batch: Any) -> ModelFlops:
        """Return the model FLOPs of a picture, forward and backward."""
        return image_flops(self, math.prod(self.grid))


def places_2d(rows: int, columns: int, dim: int) -> np.ndarray[Any, Any]:
    """Return a vector for each place of a grid, `[rows * columns, dim]`.

    The first half says the column, the second the row, in sines and then cosines.

    Source: Peebles and Xie 2022, arXiv:2212.09748, section 3.2, after Vaswani et al. 2017,
    arXiv:1706.03762, section 3.5.
    """
    rates = 1.0 / 10_000 ** (np.arange(dim // 4) / (dim // 4))

    def waves(places: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        angles = np.outer(places.reshape(-1), rates)
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)

    row, column = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    return np.concatenate([waves(column), waves(row)], axis=1).astype(np.float32)
