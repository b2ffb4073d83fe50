"""What encoders share that make soft tokens of squares of patches: how a picture is cut.

Letters: B pictures, H and W pixels of a side, P of a patch, M patches of a side of a soft token, F
frames, C channels; T patches, N = T / M^2 soft tokens.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ConfigError
from axcore.layers import GRID_COLUMNS, Linear, RMSNorm, TokenInfo, activation_fn, shard, whole_rows
from axcore.module import Module
from axl_vision.encoder import NormalizePixels, Pixels
from axl_vision.images import Image


class PatchMerger(Module):
    """Squares of patches become soft tokens: a norm of each, and a layer of both at once.

    Slot protocol: the parent fills `in_dim` and `out_dim`.

    Source: Bai et al. 2025, arXiv:2502.13923, section 2.1.
    """

    @config
    class Config(Module.Config["PatchMerger"]):
        """The config of a `PatchMerger`.

        Args:
            in_dim: Size of a patch's token.
            out_dim: Size of a token of the language model.
            num_patches: Of a soft token, M^2.
            norm: Of each patch.
            linear: Both products.
        """

        in_dim: PositiveInt = REQUIRED
        out_dim: PositiveInt = REQUIRED
        num_patches: PositiveInt = REQUIRED
        norm: Module.Config = RMSNorm.Config(epsilon=1e-6)
        linear: Module.Config = Linear.Config(has_bias=True)

    def setup(self, cfg: Config) -> None:
        """Build the norm and both products."""
        width = cfg.in_dim * cfg.num_patches
        self.norm = cfg.norm.build(dim=cfg.in_dim)
        self.up = cfg.linear.build(in_dim=width, out_dim=width, axes=("embed", "mlp"))
        self.down = cfg.linear.build(in_dim=width, out_dim=cfg.out_dim, axes=("mlp", "embed"))

    def forward(self, x: Float[Array, "B T in_dim"]) -> Float[Array, "B N out_dim"]:
        """Return a soft token for each `num_patches` that follow each other."""
        merged = self.norm(x).reshape(x.shape[0], -1, x.shape[2] * self.config.num_patches)
        return self.down(activation_fn("gelu")(self.up(merged)))


class GridTokens(Module):
    """The patches of pictures of any size, block by block, and in a block square by square.

    A subclass makes soft tokens of them. The parent fills `dim`.
    """

    @config
    class Config(Module.Config["GridTokens"]):
        """The config of a `GridTokens`.

        Args:
            dim: Size of a token of the language model.
            width: Size of a patch's token.
            image_size: H and W.
            patch_size: P.
            num_channels: C.
            num_frames: F; a picture is as many equal frames as a patch has of a film.
            merge_size: M.
            pixels: Makes floats of bytes.
            patches: Projects the `C * F * P * P` numbers of a patch.
            stack: The layers.
            merger: Makes soft tokens.
        """

        dim: PositiveInt = REQUIRED
        width: PositiveInt = REQUIRED
        image_size: tuple[PositiveInt, PositiveInt] = (448, 448)
        patch_size: PositiveInt = 14
        num_channels: PositiveInt = 3
        num_frames: PositiveInt = 2
        merge_size: PositiveInt = 2
        pixels: Module.Config = NormalizePixels.Config()
        patches: Module.Config = Linear.Config()
        stack: Module.Config = REQUIRED
        merger: PatchMerger.Config = PatchMerger.Config()

        @property
        def grid(self) -> tuple[int, int]:
            """Rows and columns of soft tokens."""
            side = self.patch_size * self.merge_size
            height, width = self.image_size
            return height // side, width // side

        @property
        def block(self) -> int:
            """Soft tokens of a side of a block."""
            return 1

        def input_feature(self) -> Image.Config:
            """Return the feature of data that decodes a picture for it."""
            height, width = self.image_size
            channels: Any = self.num_channels
            return Image.Config(height=height, width=width, num_channels=channels)

    config: Config

    def setup(self, cfg: Config) -> None:
        """Build the parts."""
        self.pixels = cfg.pixels.build()
        numbers = cfg.num_channels * cfg.num_frames * cfg.patch_size**2
        self.patches = cfg.patches.build(in_dim=numbers, out_dim=cfg.width, axes=(None, "embed"))
        self.stack = cfg.stack.build(dim=cfg.width)
        self.merger = cfg.merger.build(
            in_dim=cfg.width, out_dim=cfg.dim, num_patches=cfg.merge_size**2
        )
        rows, columns = cfg.grid
        self.num_tokens = rows * columns

    @property
    def input_spec(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of one picture: bytes."""
        shape = (*self.config.image_size, self.config.num_channels)
        return jax.ShapeDtypeStruct(shape, jnp.uint8)  # type: ignore[no-untyped-call]

    def encoded(self, image: Pixels) -> Float[Array, "B T width"]:
        """Return the patches behind the last layer, in the order of blocks."""
        x = self.placed(self.patches(self._cut(self.pixels(image))))
        x = shard(x, "batch", "time", "embed")
        info: TokenInfo = whole_rows(x)
        places = self.in_blocks(self._places())[None]
        return self.stack(x, info._replace(positions=jnp.broadcast_to(places, x.shape[:2])))

    def placed(self, x: Float[Array, "B T width"]) -> Float[Array, "B T width"]:
        """Return the patches that the first layer gets."""
        return x

    def in_rows(self, soft: Float[Array, "B N size"]) -> Float[Array, "B N size"]:
        """Return soft tokens from left to right and from top to bottom."""
        block = self.config.block
        by_block = soft.reshape(-1, *self._num_blocks(), block, block, soft.shape[-1])
        return by_block.swapaxes(2, 3).reshape(-1, self.num_tokens, soft.shape[-1])

    def in_blocks(self, of_patches: Any) -> Any:
        """Return values of patches, `[rows, columns, ...]`, in the order of blocks: `[T, ...]`."""
        (down, across), block, merge = self._num_blocks(), self.config.block, self.config.merge_size
        rest = of_patches.shape[2:]
        x = of_patches.reshape(down, block, merge, across, block, merge, *rest)
        order = (0, 3, 1, 4, 2, 5, *range(6, x.ndim))
        return x.transpose(order).reshape(-1, *rest)

    def _num_blocks(self) -> tuple[int, int]:
        """Return how many blocks are above each other, and next to each other."""
        rows, columns = self.config.grid
        return rows // self.config.block, columns // self.config.block

    def _cut(self, image: Float[Array, "B H W C"]) -> Float[Array, "B T numbers"]:
        """Return the numbers of patches, in the order in which layers get these."""
        cfg = self.config
        (down, across), block = self._num_blocks(), cfg.block
        merge, size = cfg.merge_size, cfg.patch_size
        # Letters of both sides: block, soft token, patch, pixel.
        x = image.reshape(
            -1, down, block, merge, size, across, block, merge, size, cfg.num_channels
        )
        x = x.transpose(0, 1, 5, 2, 6, 3, 7, 9, 4, 8)
        x = x.reshape(x.shape[0], -1, cfg.num_channels, 1, size, size)
        x = jnp.repeat(x, cfg.num_frames, axis=3)
        return x.reshape(*x.shape[:2], -1)

    def _places(self) -> np.ndarray:
        """Return each patch's row and column as one number: `[rows, columns]`."""
        rows, columns = (one * self.config.merge_size for one in self.config.grid)
        row, column = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
        return (row * GRID_COLUMNS + column).astype(np.int32)


def check_size(cfg: GridTokens.Config, step: int, why: str) -> None:
    """Check that the sides of pictures are multiples of a step.

    Raises:
        ConfigError: One is not, or the step is none.
    """
    if cfg.block and not any(size % step for size in cfg.image_size):
        return
    height, width = (max(1, round(size / step)) * step for size in cfg.image_size)
    side = cfg.patch_size * cfg.merge_size
    raise ConfigError(
        f"image_size is {cfg.image_size}, and {why}; a soft token has {side}",
        where="image_size",
        hint=f"set it to {(height, width)}",
    )
