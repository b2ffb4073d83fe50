"""`ImageTokens`: pictures as soft tokens of a language model, which reads them as text.

Letters: B pictures, N soft tokens of each.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, NonNegativeInt, PositiveInt, config
from axcore.layers import Activation, Linear, activation_fn
from axcore.models import flops_per_token
from axcore.module import Module
from axl_vision.encoder import ImageEncoder, Pixels, image_flops
from axl_vision.images import Image, image_feature


class Connector(Module):
    """From tokens of a picture to those of a language model: two products, one activation between.

    Source: Liu et al. 2023, arXiv:2310.03744, section 3.2. Slot protocol: the parent fills `in_dim`
    and `out_dim`.
    """

    @config
    class Config(Module.Config["Connector"]):
        """The config of a `Connector`.

        Args:
            in_dim: Size of a picture's token.
            out_dim: Size of a token of the language model.
            activation: Between the products.
            linear: Both products.
        """

        in_dim: PositiveInt = REQUIRED
        out_dim: PositiveInt = REQUIRED
        activation: Activation = "gelu"
        linear: Module.Config = Linear.Config(has_bias=True)

    def setup(self, cfg: Config) -> None:
        """Build both products."""
        self.up = cfg.linear.build(in_dim=cfg.in_dim, out_dim=cfg.out_dim, axes=("embed", "mlp"))
        self.down = cfg.linear.build(in_dim=cfg.out_dim, out_dim=cfg.out_dim, axes=("mlp", "embed"))

    def forward(self, x: Float[Array, "B N in_dim"]) -> Float[Array, "B N out_dim"]:
        """Return the soft tokens."""
        return self.down(activation_fn(self.config.activation)(self.up(x)))


class ImageTokens(Module):
    """The patches of a picture as soft tokens. Slot protocol: the parent fills `dim`.

    Source: Liu et al. 2023, arXiv:2304.08485, section 4.1.
    """

    @config
    class Config(Module.Config["ImageTokens"]):
        """The config of an `ImageTokens`.

        Args:
            dim: Size of a token of the language model.
            encoder: Encodes the picture; its pool is not used.
            connector: Makes tokens of the language model of those of the picture.
        """

        sized_parts: ClassVar[tuple[str, ...]] = ("encoder",)

        dim: PositiveInt = REQUIRED
        encoder: ImageEncoder.Config = REQUIRED
        connector: Module.Config = Connector.Config()

        def input_feature(self) -> Image.Config:
            """Return the feature of data that decodes a picture for it."""
            return image_feature(self.encoder)

    def setup(self, cfg: Config) -> None:
        """Build both."""
        self.encoder = cfg.encoder.build()
        self.connector = cfg.connector.build(in_dim=cfg.encoder.dim, out_dim=cfg.dim)
        self.num_first: NonNegativeInt = cfg.encoder.num_first_tokens
        self.num_tokens = cfg.encoder.num_patches

    @property
    def input_spec(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of one picture: bytes."""
        cfg = self.config.encoder
        shape = (cfg.height, cfg.width, cfg.patches.num_channels)
        return jax.ShapeDtypeStruct(shape, jnp.uint8)  # type: ignore[no-untyped-call]

    @property
    def flops_per_input(self) -> float:
        """Model FLOPs of a picture, forward and backward."""
        connector = flops_per_token(self.connector, 0) * self.num_tokens
        return image_flops(self.encoder, self.encoder.num_tokens).per_unit + connector

    def forward(self, image: Pixels) -> Float[Array, "B N dim"]:
        """Return the soft tokens of each picture, from left to right and from top to bottom."""
        tokens: Any = self.encoder.encode(image)
        # First tokens, such as a class token, are of the picture as a whole and have no place.
        return self.connector(tokens[:, self.num_first :])
