"""Rotary positions with more than one axis: `AxialRoPE` for pictures, `MultimodalRoPE` for texts.

Letters: B rows, T tokens of a row, A axes, P pairs of a head's dimensions.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from axcore.config import REQUIRED, PositiveFloat, PositiveInt, config
from axcore.errors import ConfigError
from axcore.layers.attention.rope import Keys, Positions, Queries, rope_frequencies, rotate_by
from axcore.module import Module

GRID_POSITIONS = "grid_positions"
"""The channel in which `GridPositions` sends the positions of each token, `[B, T, 3]`."""

GRID_COLUMNS = 1 << 12
"""The most columns of a picture's grid: its token at row r and column c has position
`r * GRID_COLUMNS + c`, so that positions stay one number for each token."""


class AxialRoPE(Module):
    """Rotate half of a head's pairs by the row of a picture's token, and half by its column.

    Both halves have the frequencies of a head of half the size. Positions are
    `row * GRID_COLUMNS + column`. Slot protocol: the parent fills `head_dim`.

    Source: Bai et al. 2025, arXiv:2502.13923, section 2.1.1.
    """

    @config
    class Config(Module.Config["AxialRoPE"]):
        """The config of an `AxialRoPE`.

        Args:
            head_dim: Size of a head, a multiple of 4.
            theta: Base of the wavelengths.
        """

        head_dim: PositiveInt = REQUIRED
        theta: PositiveFloat = 10_000.0

    def setup(self, cfg: Config) -> None:
        """Compute the frequencies.

        Raises:
            ConfigError: The head has no two halves of pairs.
        """
        if cfg.head_dim % 4:
            raise ConfigError(
                f"head_dim is {cfg.head_dim}; positions of rows and columns need a multiple of 4",
                hint=f"set it to {cfg.head_dim // 4 * 4 + 4}",
            )
        self.frequencies = rope_frequencies(cfg.head_dim // 2, cfg.theta).astype(np.float32)

    def forward(self, q: Queries, k: Keys, positions: Positions) -> tuple[Queries, Keys]:
        """Return both rotated, each in its dtype; angles are computed in float32."""
        row_and_column = jnp.divmod(positions, GRID_COLUMNS)
        frequencies = self.frequencies[None, None, :]
        angles = [one.astype(jnp.float32)[..., None] * frequencies for one in row_and_column]
        return rotate_by(q, k, jnp.concatenate(angles, axis=-1))


class MultimodalRoPE(Module):
    """Rotate each pair of a head by the position on one of three axes: time, row, column.

    The frequencies are those of `RoPE`. A token of text has the same position on all axes, so that
    a text without pictures is rotated as by `RoPE`; those of pictures are what `GridPositions`
    sends. Slot protocol: the parent fills `head_dim`.

    Source: Wang et al. 2024, arXiv:2409.12191, section 2.1.
    """

    @config
    class Config(Module.Config["MultimodalRoPE"]):
        """The config of a `MultimodalRoPE`.

        Args:
            head_dim: Size of a head; even.
            theta: Base of the wavelengths.
            sections: Pairs of each axis, of `head_dim / 2` in all.
            is_interleaved: Whether the axes take turns from the first pair on, as long as rows and
                columns have some, and the rest are of time; otherwise axis by axis.
        """

        head_dim: PositiveInt = REQUIRED
        theta: PositiveFloat = 10_000.0
        sections: tuple[PositiveInt, ...] = (16, 24, 24)
        is_interleaved: bool = False

    def setup(self, cfg: Config) -> None:
        """Compute the frequencies, and the axis of each pair."""
        num_pairs = cfg.head_dim // 2
        if len(cfg.sections) != 3 or sum(cfg.sections) != num_pairs:
            raise ConfigError(
                f"sections are {cfg.sections}; expected three with {num_pairs} pairs in all, half "
                f"of head_dim={cfg.head_dim}",
                where="sections",
                hint=f"--set sections='{_split(num_pairs)}'",
            )
        self.frequencies = rope_frequencies(cfg.head_dim, cfg.theta).astype(np.float32)
        self.axes = np.repeat(np.arange(3), cfg.sections)
        if cfg.is_interleaved:
            self.axes = np.zeros(num_pairs, np.int64)
            for axis in (1, 2):
                self.axes[axis : 3 * cfg.sections[axis] : 3] = axis

    def forward(self, q: Queries, k: Keys, positions: Positions) -> tuple[Queries, Keys]:
        """Return both rotated, each in its dtype; angles are computed in float32."""
        grid: Any = self.get_shared(GRID_POSITIONS)
        if grid is None:
            of_pairs = positions.astype(jnp.float32)[..., None]
        else:
            of_pairs = jnp.take(grid.astype(jnp.float32), self.axes, axis=-1)
        return rotate_by(q, k, of_pairs * self.frequencies[None, None, :])


def _split(num_pairs: int) -> tuple[int, int, int]:
    """Return sections of the shares that pretrained checkpoints have."""
    rest = 3 * num_pairs // 8
    return num_pairs - 2 * rest, rest, rest
