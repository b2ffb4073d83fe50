"""`PooledImageTokens`: each soft token of a picture is the mean of a square of patches.

Letters: B pictures, P patches and N soft tokens of each.
"""

from typing import Any

from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config, evolve
from axcore.errors import ConfigError
from axcore.layers import Linear, RMSNorm
from axcore.module import Module
from axl_vision.encoder import Pixels
from axl_vision.image_tokens import ImageTokens
from axl_vision.images import Image


class NormedProjection(Module):
    """From tokens of a picture to those of a language model: a norm and a product.

    Source: Gemma Team 2025, arXiv:2503.19786, section 2.1. Slot protocol: the parent fills `in_dim`
    and `out_dim`.
    """

    @config
    class Config(Module.Config["NormedProjection"]):
        """The config of a `NormedProjection`.

        Args:
            in_dim: Size of a picture's token.
            out_dim: Size of a token of the language model.
            norm: Before the product.
            linear: The product.
        """

        in_dim: PositiveInt = REQUIRED
        out_dim: PositiveInt = REQUIRED
        norm: Module.Config = RMSNorm.Config(weight_offset=1.0)
        linear: Module.Config = Linear.Config()

    def setup(self, cfg: Config) -> None:
        """Build both."""
        self.norm = cfg.norm.build(dim=cfg.in_dim)
        self.linear = cfg.linear.build(
            in_dim=cfg.in_dim, out_dim=cfg.out_dim, axes=("embed", "mlp")
        )

    def forward(self, x: Float[Array, "B N in_dim"]) -> Float[Array, "B N out_dim"]:
        """Return the soft tokens."""
        return self.linear(self.norm(x))


class PooledImageTokens(ImageTokens):
    """Squares of patches as soft tokens. Slot protocol: the parent fills `dim`.

    Source: Gemma Team 2025, arXiv:2503.19786, section 2.1.
    """

    @config
    class Config(ImageTokens.Config):
        """The config of a `PooledImageTokens`.

        Args:
            pooled: Patches of a side of such a square.
        """

        connector: Module.Config = NormedProjection.Config()
        pooled: PositiveInt = 4

        @property
        def grid(self) -> tuple[int, int]:
            """Rows and columns of a picture's patches."""
            cfg = self.encoder
            size: Any = cfg.patches.patch_size
            return cfg.height // size, cfg.width // size

        @property
        def num_tokens(self) -> int:
            """N."""
            rows, columns = self.grid
            return (rows // self.pooled) * (columns // self.pooled)

        def input_feature(self) -> Image.Config:
            """Return the feature of data that decodes a picture for it, as Gemma 3 was trained."""
            return evolve(super().input_feature(), fit="stretch", resample="bilinear")

    def setup(self, cfg: ImageTokens.Config) -> None:
        """Build both.

        Raises:
            ConfigError: Patches are left over.
        """
        own: Any = self.config
        if any(side % own.pooled for side in own.grid):
            rows, columns = own.grid
            raise ConfigError(
                f"a picture has {rows} x {columns} patches, and a soft token is of "
                f"{own.pooled} x {own.pooled}, which do not divide them",
                where="encoder.pooled",
                hint=f"encoder.pooled={_divisor(rows, columns)}",
            )
        super().setup(cfg)
        self.num_tokens = own.num_tokens

    def forward(self, image: Pixels) -> Float[Array, "B N dim"]:
        """Return the soft tokens of each picture, from left to right and from top to bottom."""
        own: Any = self.config
        tokens: Any = self.encoder.encode(image)[:, self.num_first :]
        rows, columns = own.grid
        count, side, width = tokens.shape[0], own.pooled, tokens.shape[-1]
        squares = tokens.reshape(count, rows // side, side, columns // side, side, width)
        return self.connector(squares.mean((2, 4)).reshape(count, -1, width))


def _divisor(*counts: int) -> int:
    """Return the largest common divisor of counts that is at most 4, as in Gemma 3."""
    return next(n for n in (4, 3, 2, 1) if not any(count % n for count in counts))
