"""`ImageEncoder`: a picture becomes tokens, and these one vector; and a classifier that has one.

An encoder is a stack of the core's layers whose attention is not causal, so that whatever changes
those layers (experts, low precision, adapters, recomputation) changes it in the same way.

Letters: B rows, H and W height and width, C channels of a picture.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, NonNegativeInt, PositiveInt, config
from axcore.errors import ConfigError
from axcore.interop import CheckpointInfo
from axcore.layers import (
    Dropout,
    FirstToken,
    LayerNorm,
    Linear,
    PatchEmbedding,
    ScannedLayers,
    TransformerLayer,
    shard,
    whole_rows,
)
from axcore.models import flops_per_token
from axcore.module import ModelFlops, Module, Normal, Param, entry

Pixels = Float[Array, "batch height width channels"] | Int[Array, "batch height width channels"]
Tokens = Float[Array, "batch time dim"]

_WHITE = 255.0
"""The largest value of a pixel that is stored as a byte."""


class NormalizePixels(Module):
    """Bytes become floats around zero: `(pixel / 255 - mean) / std`. Floats stay as they are."""

    @config
    class Config(Module.Config["NormalizePixels"]):
        """The config of a `NormalizePixels`.

        Args:
            mean: Of each channel, or of all of them.
            std: Of each channel, or of all of them.
        """

        mean: tuple[float, ...] = (0.5,)
        std: tuple[float, ...] = (0.5,)

    def forward(self, image: Pixels) -> Float[Array, "batch height width channels"]:
        """Return floats, in the dtype that the model computes in."""
        dtype = self.dtypes.compute
        if not jnp.issubdtype(image.dtype, jnp.integer):
            return image.astype(dtype)
        mean, std = self._of_channels()
        return ((image.astype(jnp.float32) / _WHITE - mean) / std).astype(dtype)

    @entry
    def to_bytes(
        self, image: Float[Array, "batch height width channels"]
    ) -> Int[Array, "batch height width channels"]:
        """Return the bytes that such floats were made of, or the nearest."""
        mean, std = self._of_channels()
        return jnp.clip(jnp.round((image * std + mean) * _WHITE), 0, _WHITE).astype(jnp.uint8)

    def _of_channels(self) -> tuple[Array, Array]:
        cfg = self.config
        mean, std = (jnp.asarray(one, jnp.float32)[None, None, None] for one in (cfg.mean, cfg.std))
        return mean, std


class ImageEncoder(Module):
    """A vision transformer without a head. Slot protocol: the parent fills nothing.

    Source: Dosovitskiy et al. 2020, arXiv:2010.11929, section 3.1.
    """

    @config
    class Config(Module.Config["ImageEncoder"]):
        """The config of an `ImageEncoder`.

        Args:
            dim: Size of a token.
            height: H, pixels.
            width: W, pixels.
            pixels: Makes floats of bytes.
            patches: Makes tokens of a picture.
            num_first_tokens: Learned tokens before those of the picture, such as a class token.
            are_first_tokens_placed: Whether these have positions too.
            dropout: Applied to the tokens.
            input_norm: A norm before the first layer, if there is one.
            stack: The layers.
            norm: The norm behind the last layer, if there is one.
            pool: Makes one vector of the tokens.
        """

        dim: PositiveInt = REQUIRED
        height: PositiveInt = REQUIRED
        width: PositiveInt = REQUIRED
        pixels: Module.Config = NormalizePixels.Config()
        patches: PatchEmbedding.Config = PatchEmbedding.Config()
        num_first_tokens: NonNegativeInt = 1
        are_first_tokens_placed: bool = True
        dropout: Dropout.Config = Dropout.Config()
        input_norm: Module.Config | None = None
        stack: Module.Config = ScannedLayers.Config(layer=TransformerLayer.Config())
        norm: Module.Config | None = LayerNorm.Config(epsilon=1e-6)
        pool: Module.Config = FirstToken.Config()

        @property
        def num_patches(self) -> int:
            """Tokens of a picture, without those before them."""
            size = self.patches.patch_size
            return (self.height // size) * (self.width // size)

        @property
        def num_positions(self) -> int:
            """Rows of the table of positions."""
            placed = self.num_first_tokens if self.are_first_tokens_placed else 0
            return self.num_patches + placed

    def setup(self, cfg: Config) -> None:
        """Build the parts; declare the positions and the first tokens."""
        size = cfg.patches.patch_size
        if (cfg.height % size or cfg.width % size) and not cfg.patches.leaves_out_rest:
            raise ConfigError(
                f"pictures have {cfg.height} x {cfg.width} pixels, and patches {size} x {size}, "
                "which do not divide them",
                where="patches.patch_size",
                hint=f"height={_up_to(cfg.height, size)}, width={_up_to(cfg.width, size)}",
            )
        self.pixels = cfg.pixels.build()
        self.patches = cfg.patches.build(dim=cfg.dim)
        self.positions = Param(
            (cfg.num_positions, cfg.dim), axes=(None, "embed"), init=Normal(), decay=False
        )
        if cfg.num_first_tokens:
            self.first_tokens = Param(
                (cfg.num_first_tokens, cfg.dim), axes=(None, "embed"), init=Normal(), decay=False
            )
        self.num_tokens = cfg.num_patches + cfg.num_first_tokens
        # They are added and not multiplied, so the count of FLOPs leaves them out.
        self.inactive_params = self.num_tokens * cfg.dim
        self.dropout = cfg.dropout.build()
        if cfg.input_norm is not None:
            self.input_norm = cfg.input_norm.build(dim=cfg.dim)
        self.stack = cfg.stack.build(dim=cfg.dim)
        if cfg.norm is not None:
            self.norm = cfg.norm.build(dim=cfg.dim)
        self.pool = cfg.pool.build(dim=cfg.dim)

    def forward(self, image: Pixels) -> Float[Array, "batch dim"]:
        """Return one vector for each picture."""
        return self.pool(self.encode(image))

    def encode(self, image: Pixels) -> Tokens:
        """Return a vector for each patch, behind those of the first tokens."""
        cfg = self.config
        x = self.placed(self.patches(self.pixels(image)))
        x = shard(self.dropout(x), "batch", "time", "embed")
        if cfg.input_norm is not None:
            x = self.input_norm(x)
        x = self.stack(x, whole_rows(x))
        return x if cfg.norm is None else self.norm(x)

    def placed(self, x: Tokens) -> Tokens:
        """Return the tokens of patches with positions, behind the first tokens."""
        cfg = self.config
        positions = self.positions.astype(x.dtype)[None]
        if cfg.num_first_tokens:
            first = self.first_tokens.astype(x.dtype)
            if not cfg.are_first_tokens_placed:
                x = x + positions
            rows = jnp.broadcast_to(first[None], (x.shape[0], *first.shape))
            x = jnp.concatenate([rows, x], axis=1)
        if not cfg.num_first_tokens or cfg.are_first_tokens_placed:
            x = x + positions
        return x


def _up_to(number: int, size: int) -> int:
    """Return the next multiple of a size."""
    return -(-number // size) * size


class ImageClassifier(Module):
    """An encoder, and logits of its vector. As the root of a tree it takes its own sizes.

    Source: Dosovitskiy et al. 2020, arXiv:2010.11929, section 3.1.
    """

    @config
    class Config(Module.Config["ImageClassifier"]):
        """The config of an `ImageClassifier`.

        Args:
            num_classes: Number of logits.
            encoder: From a picture to a vector.
            head: From the vector to logits.
            published: The pretrained checkpoint that this model was read from.
        """

        num_classes: PositiveInt = REQUIRED
        encoder: ImageEncoder.Config = REQUIRED
        head: Module.Config = Linear.Config(has_bias=True)
        published: CheckpointInfo | None = None

    def setup(self, cfg: Config) -> None:
        """Build encoder and head."""
        self.encoder = cfg.encoder.build()
        self.head = cfg.head.build(
            in_dim=cfg.encoder.dim, out_dim=cfg.num_classes, axes=("embed", None)
        )

    def forward(self, image: Pixels) -> Float[Array, "batch classes"]:
        """Return the logits of each picture's classes."""
        return self.head(self.encoder(image))

    def flops_per_unit(self, batch: Any) -> ModelFlops:
        """Return the model FLOPs of a picture, forward and backward."""
        return image_flops(self, self.encoder.num_tokens)


def image_flops(model: Module, num_tokens: int) -> ModelFlops:
    """Return the FLOPs of a picture, forward and backward, from how many tokens it has."""
    # A token sees all others, where a causal one sees half of them on average: twice the length.
    per_token = flops_per_token(model, 2 * num_tokens)
    return ModelFlops(per_token * num_tokens, "6 N T + 12 T^2 d per attention layer")
