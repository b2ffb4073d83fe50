"""`WindowedImageTokens`: soft tokens of pictures whose layers look at windows, and at all at times.

Patches have positions of rows and columns, none of which is learned, so that one set of weights
reads pictures of any size; squares of patches become one soft token.

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
from axcore.interop import layers_of
from axcore.layers import (
    GRID_COLUMNS,
    Linear,
    RMSNorm,
    TokenInfo,
    activation_fn,
    shard,
    whole_rows,
)
from axcore.models import flops_per_token
from axcore.module import Module
from axl_vision.encoder import NormalizePixels, Pixels
from axl_vision.images import Image


class WindowAttention(Module):
    """Attention of tokens to those of their own window, which follow each other.

    Slot protocol: the parent fills `dim`.

    Source: Bai et al. 2025, arXiv:2502.13923, section 2.1.1.
    """

    @config
    class Config(Module.Config["WindowAttention"]):
        """The config of a `WindowAttention`.

        Args:
            dim: Size of a token.
            num_tokens: Of a window.
            attention: What is done in each window.
        """

        dim: PositiveInt = REQUIRED
        num_tokens: PositiveInt = REQUIRED
        attention: Module.Config = REQUIRED

    def setup(self, cfg: Config) -> None:
        """Build the attention."""
        self.attention = cfg.attention.build(dim=cfg.dim)

    def forward(self, x: Float[Array, "B T dim"], info: TokenInfo) -> Float[Array, "B T dim"]:
        """Return what attention returns, window by window.

        Raises:
            ConfigError: The tokens are not a number of windows, or some of them are padding.
        """
        count, size = x.shape[1], self.config.num_tokens
        if count % size or info.segment_ids is not None or info.token_mask is not None:
            raise ConfigError(
                f"{count} tokens without padding are needed in windows of {size}",
                where="num_tokens",
                hint="choose a picture size that is a multiple of the window's",
            )
        windows = x.reshape(-1, size, x.shape[2])
        positions = info.positions.reshape(-1, size)
        mixed: Array = self.attention(windows, TokenInfo(positions))
        return mixed.reshape(x.shape)


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


class WindowedImageTokens(Module):
    """A vision transformer of windows, and a merger of its tokens. The parent fills `dim`.

    Its layers are called with patches window by window, and in a window square by square. The
    attention of a layer sees all of them, or is a `WindowAttention`.

    Source: Bai et al. 2025, arXiv:2502.13923, section 2.1.
    """

    @config
    class Config(Module.Config["WindowedImageTokens"]):
        """The config of a `WindowedImageTokens`.

        Args:
            dim: Size of a token of the language model.
            width: Size of a patch's token.
            image_size: H and W, multiples of the window's side.
            patch_size: P.
            num_channels: C.
            num_frames: F; a picture is as many equal frames as a patch has of a film.
            merge_size: M.
            window_size: Pixels of a side of a window.
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
        window_size: PositiveInt = 112
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
        def window(self) -> int:
            """Soft tokens of a side of a window."""
            return self.window_size // self.merge_size // self.patch_size

        @property
        def patches_in_window(self) -> int:
            """Patches of a window."""
            return (self.window * self.merge_size) ** 2

        def input_feature(self) -> Image.Config:
            """Return the feature of data that decodes a picture for it."""
            height, width = self.image_size
            channels: Any = self.num_channels
            return Image.Config(height=height, width=width, num_channels=channels)

    def setup(self, cfg: Config) -> None:
        """Build the parts.

        Raises:
            ConfigError: The windows do not divide the picture, or are not those of the layers.
        """
        side = cfg.patch_size * cfg.merge_size
        step = max(1, cfg.window) * side
        if any(size % step for size in cfg.image_size) or not cfg.window:
            height, width = (max(1, round(size / step)) * step for size in cfg.image_size)
            raise ConfigError(
                f"image_size is {cfg.image_size}, and a window has {cfg.window_size} pixels of a "
                f"side, {cfg.window} soft tokens of {side}",
                where="image_size",
                hint=f"set it to {(height, width)}",
            )
        for window in _windows_of(cfg.stack):
            if window.num_tokens != cfg.patches_in_window:
                raise ConfigError(
                    f"layers have windows of {window.num_tokens} patches, and those of the encoder "
                    f"have {cfg.patches_in_window}",
                    where="stack",
                    hint=f"--set '**.attention.num_tokens={cfg.patches_in_window}'",
                )
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

    @property
    def flops_per_input(self) -> float:
        """Model FLOPs of a picture, forward and backward."""
        cfg = self.config
        count = self.num_tokens * cfg.merge_size**2
        merger = flops_per_token(self.merger, 0)
        # A token sees all others, where a causal one sees half of them on average.
        of_patch = flops_per_token(self, 2 * count) - merger
        # In a window it sees the others of that, so what is counted too much is taken off.
        unseen = sum(count - window.num_tokens for window in _windows_of(cfg.stack))
        return (of_patch - 12.0 * unseen * cfg.width) * count + merger * self.num_tokens

    def forward(self, image: Pixels) -> Float[Array, "B N dim"]:
        """Return the soft tokens of each picture, from left to right and from top to bottom."""
        cfg = self.config
        x = self.patches(self._cut(self.pixels(image)))
        x = shard(x, "batch", "time", "embed")
        info = whole_rows(x)
        x = self.stack(x, info._replace(positions=jnp.broadcast_to(self._places(), x.shape[:2])))
        soft = self.merger(x)
        by_window = soft.reshape(-1, *self._num_windows(), cfg.window, cfg.window, cfg.dim)
        return by_window.swapaxes(2, 3).reshape(-1, self.num_tokens, cfg.dim)

    def _num_windows(self) -> tuple[int, int]:
        """Return how many windows are above each other, and next to each other."""
        rows, columns = self.config.grid
        return rows // self.config.window, columns // self.config.window

    def _cut(self, image: Float[Array, "B H W C"]) -> Float[Array, "B T numbers"]:
        """Return the numbers of patches, in the order in which layers get these."""
        cfg = self.config
        (down, across), window = self._num_windows(), cfg.window
        merge, size = cfg.merge_size, cfg.patch_size
        # Letters of both sides: window, soft token, patch, pixel.
        x = image.reshape(
            -1, down, window, merge, size, across, window, merge, size, cfg.num_channels
        )
        x = x.transpose(0, 1, 5, 2, 6, 3, 7, 9, 4, 8)
        x = x.reshape(x.shape[0], -1, cfg.num_channels, 1, size, size)
        x = jnp.repeat(x, cfg.num_frames, axis=3)
        return x.reshape(*x.shape[:2], -1)

    def _places(self) -> np.ndarray:
        """Return each patch's row and column as one number, in the order of layers: `[1, T]`."""
        cfg = self.config
        (down, across), window, merge = self._num_windows(), cfg.window, cfg.merge_size
        row, column = np.meshgrid(
            np.arange(cfg.grid[0] * merge), np.arange(cfg.grid[1] * merge), indexing="ij"
        )
        places = (row * GRID_COLUMNS + column).astype(np.int32)
        places = places.reshape(down, window, merge, across, window, merge)
        return places.transpose(0, 3, 1, 4, 2, 5).reshape(1, -1)


def _windows_of(stack: Any) -> list[WindowAttention.Config]:
    """Return the configs of the layers' attention that is in windows."""
    kinds = [getattr(layer, "attention", None) for layer in layers_of(stack)]
    return [kind for kind in kinds if isinstance(kind, WindowAttention.Config)]
