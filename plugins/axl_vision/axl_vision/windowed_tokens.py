"""`WindowedImageTokens`: soft tokens of pictures whose layers look at windows, and at all at times.

Patches have positions of rows and columns, none of which is learned, so that one set of weights
reads pictures of any size; squares of patches become one soft token.

Letters: B pictures; T patches, N soft tokens.
"""

from typing import Any

from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ConfigError
from axcore.interop import layers_of
from axcore.layers import TokenInfo
from axcore.models import flops_per_token
from axcore.module import Module
from axl_vision.encoder import Pixels
from axl_vision.grid_tokens import GridTokens, check_size


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


class WindowedImageTokens(GridTokens):
    """A vision transformer of windows, and a merger of its tokens. The parent fills `dim`.

    Its layers are called with patches window by window, and in a window square by square. The
    attention of a layer sees all of them, or is a `WindowAttention`.

    Source: Bai et al. 2025, arXiv:2502.13923, section 2.1.
    """

    @config
    class Config(GridTokens.Config):
        """The config of a `WindowedImageTokens`.

        Args:
            window_size: Pixels of a side of a window, which divide the picture.
        """

        window_size: PositiveInt = 112

        @property
        def block(self) -> int:
            """Soft tokens of a side of a window."""
            return self.window_size // self.merge_size // self.patch_size

        @property
        def patches_in_window(self) -> int:
            """Patches of a window."""
            return (self.block * self.merge_size) ** 2

    config: Config

    def setup(self, cfg: GridTokens.Config) -> None:
        """Build the parts.

        Raises:
            ConfigError: The windows do not divide the picture, or are not those of the layers.
        """
        own = self.config
        side = cfg.patch_size * cfg.merge_size
        check_size(
            cfg, max(1, cfg.block) * side, f"a window has {own.window_size} pixels of a side"
        )
        for window in _windows_of(cfg.stack):
            if window.num_tokens != own.patches_in_window:
                raise ConfigError(
                    f"layers have windows of {window.num_tokens} patches, and those of the encoder "
                    f"have {own.patches_in_window}",
                    where="stack",
                    hint=f"--set '**.attention.num_tokens={own.patches_in_window}'",
                )
        super().setup(cfg)

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
        return self.in_rows(self.merger(self.encoded(image)))


def _windows_of(stack: Any) -> list[WindowAttention.Config]:
    """Return the configs of the layers' attention that is in windows."""
    kinds = [getattr(layer, "attention", None) for layer in layers_of(stack)]
    return [kind for kind in kinds if isinstance(kind, WindowAttention.Config)]
