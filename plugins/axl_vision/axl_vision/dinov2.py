"""`Dinov2Encoder`: positions for pictures of any size, and branches that are scaled by channel.

Letters: D size of a token.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ConfigError
from axcore.interop import CheckpointInfo
from axcore.layers import PreNorm
from axcore.module import Module, Param, entry
from axl_vision.encoder import ImageClassifier, ImageEncoder, Pixels, Tokens


class LayerScaledPreNorm(PreNorm):
    """`x + dropout(scale * branch(norm(x)))`, with a scale for each channel.

    Source: Touvron et al. 2021, arXiv:2103.17239, section 2.
    """

    @config
    class Config(PreNorm.Config):
        """The config of a `LayerScaledPreNorm`.

        Args:
            scale_init: First value of the scales.
        """

        scale_init: float = 1.0

    def setup(self, cfg: Config) -> None:
        """Build the norm and the dropout; declare the scales."""
        super().setup(cfg)
        self.scale = Param((cfg.dim,), axes=("norm",), init=cfg.scale_init, decay=False)

    def forward(self, x: Tokens, branch: Any) -> Tokens:
        """Return the input with what the branch makes of it added."""
        scale = self.scale.astype(x.dtype)[None, None]
        return x + self.dropout(branch(self.norm(x)) * scale)


class Dinov2Encoder(ImageEncoder):
    """An `ImageEncoder` whose positions are of pictures of one size, and interpolated to others.

    Of the first tokens, the class token has a position. Those behind it are registers, without one.

    Source: Oquab et al. 2023, arXiv:2304.07193; registers: Darcet et al. 2023, arXiv:2309.16588,
    section 2.2.
    """

    @config
    class Config(ImageEncoder.Config):
        """The config of a `Dinov2Encoder`.

        Args:
            positions_size: Pixels of each side of the pictures that positions are of.
            is_antialiased: Whether positions are smoothed where there are fewer patches than those.
            has_mask_token: Whether there is the vector that hidden patches have in pretraining.
                It is not used here; exports have it again.
        """

        positions_size: PositiveInt = REQUIRED
        is_antialiased: bool = False
        has_mask_token: bool = True

        @property
        def num_positions(self) -> int:
            """Rows of the table of positions, of which the first is the class token's."""
            return 1 + (self.positions_size // self.patches.patch_size) ** 2

    def setup(self, cfg: Config) -> None:
        """Build the parts; declare the positions, the first tokens and the mask token."""
        if not cfg.num_first_tokens or not cfg.are_first_tokens_placed:
            raise ConfigError(
                "a DINOv2 has a class token, which has a position",
                where="encoder.num_first_tokens",
                hint="num_first_tokens=1, and 5 with four registers; are_first_tokens_placed=True",
            )
        super().setup(cfg)
        if cfg.has_mask_token:
            self.mask_token = Param((cfg.dim,), axes=("embed",), init=0.0, is_buffer=True)
        unmultiplied = cfg.num_positions + cfg.num_first_tokens + cfg.has_mask_token
        self.inactive_params = unmultiplied * cfg.dim

    def placed(self, x: Tokens) -> Tokens:
        """Return the tokens of patches with positions, behind the first tokens."""
        first = self.first_tokens.astype(x.dtype)
        rows = jnp.broadcast_to(first[None], (x.shape[0], *first.shape))
        positions = self._positions().astype(x.dtype)
        return jnp.concatenate([rows, x], axis=1) + positions[None]

    def _positions(self) -> Float[Array, "time D"]:
        """Return what is added to each token: zeros to registers."""
        cfg: Any = self.config
        table = self.positions
        of_class, of_patches = table[:1], table[1:]
        size = cfg.patches.patch_size
        side = cfg.positions_size // size
        sides = cfg.height // size, cfg.width // size
        if sides != (side, side):
            down, across = (
                bicubic_weights(side, one, is_antialiased=cfg.is_antialiased) for one in sides
            )
            grid = of_patches.astype(jnp.float32).reshape(side, side, cfg.dim)
            # Accelerators would multiply in fewer bits, by default.
            precision = jax.lax.Precision.HIGHEST
            grid = jnp.einsum("hg,wk,gkd->hwd", down, across, grid, precision=precision)
            of_patches = grid.reshape(-1, cfg.dim).astype(table.dtype)
        of_registers = jnp.zeros((cfg.num_first_tokens - 1, cfg.dim), table.dtype)
        return jnp.concatenate([of_class, of_registers, of_patches])


def bicubic_weights(old: int, new: int, *, is_antialiased: bool) -> NDArray[np.float32]:
    """Return what each new place takes of each old one, `[new, old]`, as PyTorch interpolates.

    Args:
        old: Places of the table.
        new: Places that are wanted.
        is_antialiased: Whether a place takes of all that are nearest to it, where there are fewer.

    Source: Keys 1981, IEEE Trans. ASSP 29(6), eq. 15, with the constants of PyTorch.
    """
    step = old / new
    centres = (np.arange(new)[:, None] + 0.5) * step - 0.5
    if is_antialiased:
        width = max(step, 1.0)
        # What is past the ends counts for nothing, and the rest for more.
        weights = _cubic((np.arange(old)[None] - centres) / width, -0.5)
        return (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    weights = np.zeros((new, old))
    places = np.floor(centres).astype(int) + np.arange(-1, 3)
    # What is past the ends is as the last place is.
    inside = np.clip(places, 0, old - 1)
    np.add.at(weights, (np.arange(new)[:, None], inside), _cubic(places - centres, -0.75))
    return weights.astype(np.float32)


def _cubic(x: NDArray[Any], a: float) -> NDArray[Any]:
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x**2 + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


class Dinov2(Module):
    """A pretrained encoder by itself: a picture becomes the vector of its class token.

    Source: Oquab et al. 2023, arXiv:2304.07193.
    """

    @config
    class Config(Module.Config["Dinov2"]):
        """The config of a `Dinov2`.

        Args:
            encoder: From a picture to tokens.
            published: The pretrained checkpoint that this model was read from.
        """

        encoder: Dinov2Encoder.Config = REQUIRED
        published: CheckpointInfo | None = None

    def setup(self, cfg: Config) -> None:
        """Build the encoder."""
        self.encoder = cfg.encoder.build()

    def forward(self, image: Pixels) -> Float[Array, "batch D"]:
        """Return the vector of each picture."""
        return self.encoder(image)

    @entry
    def tokens(self, image: Pixels) -> Tokens:
        """Return the vectors of the class token, of registers, and of each patch, row by row."""
        return self.encoder.encode(image)


class Dinov2Classifier(ImageClassifier):
    """A `Dinov2Encoder`, and logits of its class token and the mean of its patches.

    Source: Oquab et al. 2023, arXiv:2304.07193, section 7.1 (linear probing).
    """

    @config
    class Config(ImageClassifier.Config):
        """The config of a `Dinov2Classifier`; its fields are those of `ImageClassifier`."""

        encoder: Dinov2Encoder.Config = REQUIRED

    def setup(self, cfg: Config) -> None:
        """Build encoder and head."""
        self.encoder = cfg.encoder.build()
        self.head = cfg.head.build(
            in_dim=2 * cfg.encoder.dim, out_dim=cfg.num_classes, axes=("embed", None)
        )

    def forward(self, image: Pixels) -> Float[Array, "batch classes"]:
        """Return the logits of each picture's classes."""
        tokens = self.encoder.encode(image)
        of_patches = tokens[:, self.encoder.config.num_first_tokens :]
        mean = jnp.mean(of_patches, axis=1, dtype=jnp.float32).astype(tokens.dtype)
        return self.head(jnp.concatenate([tokens[:, 0], mean], axis=-1))
