"""Positions for attention: `RoPE`, the same on several axes, and `NoPosition`.

A position layer is called with queries, keys and positions, and returns queries and keys.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveFloat, PositiveInt, config
from axcore.errors import ConfigError
from axcore.layers.tokens import GRID_COLUMNS, GRID_POSITIONS
from axcore.module import Module
from axcore.ops import rope

Queries = Float[Array, "batch time heads head_dim"]
Keys = Float[Array, "batch time kv_heads head_dim"]
Positions = Int[Array, "batch time"]


class NoPosition(Module):
    """Leave queries and keys as they are. Slot protocol: the parent fills `head_dim`."""

    @config
    class Config(Module.Config["NoPosition"]):
        """The config of a `NoPosition`."""

        head_dim: PositiveInt = REQUIRED

    def forward(self, q: Queries, k: Keys, positions: Positions) -> tuple[Queries, Keys]:
        """Return queries and keys."""
        return q, k


class RoPE(Module):
    """Rotate pairs of a head's dimensions by angles that grow with the position.

    Dimension `i` is paired with `i + head_dim / 2` (the layout of Hugging Face's checkpoints), and
    turns by `position * theta ** (-2 i / head_dim)`.

    Source: Su et al. 2021, arXiv:2104.09864, eq. 34. Slot protocol: the parent fills `head_dim`.
    """

    @config
    class Config(Module.Config["RoPE"]):
        """The config of a `RoPE`.

        Args:
            head_dim: Size of a head; even.
            theta: Base of the wavelengths.
        """

        head_dim: PositiveInt = REQUIRED
        theta: PositiveFloat = 10_000.0

    def setup(self, cfg: Config) -> None:
        """Compute the frequencies."""
        self.frequencies = rope_frequencies(cfg.head_dim, cfg.theta)

    def forward(self, q: Queries, k: Keys, positions: Positions) -> tuple[Queries, Keys]:
        """Return both rotated, each in its dtype; angles are computed in float32."""
        return rotate(q, k, positions, frequencies=self.frequencies)


def rope_frequencies(head_dim: int, theta: float) -> np.ndarray:
    """Return the angle per position of each pair, `theta ** (-2 i / head_dim)`: float64.

    Raises:
        ConfigError: The head cannot be paired.
    """
    if head_dim % 2:
        raise ConfigError(f"head_dim is {head_dim}; rotary positions need it even")
    return np.asarray(theta ** -(np.arange(0, head_dim, 2) / head_dim))


def rotate(
    q: Queries,
    k: Keys,
    positions: Positions,
    *,
    frequencies: np.ndarray,
    amplitude: float = 1.0,
) -> tuple[Queries, Keys]:
    """Return queries and keys with their pairs rotated, each in its dtype.

    Args:
        q: Queries.
        k: Keys.
        positions: Position of each token.
        frequencies: Angle per position of each pair, `head_dim / 2` of them.
        amplitude: Factor on both results, so that its square is a factor on the logits.
    """
    # Powers were taken in float64. Angles are in float32 whatever computes: in bfloat16 positions
    # above 256 are rounded to their neighbours.
    frequencies = frequencies.astype(np.float32)[None, None, :]
    angles = positions.astype(jnp.float32)[:, :, None] * frequencies
    return rotate_by(q, k, angles, amplitude=amplitude)


def rotate_by(
    q: Queries, k: Keys, angles: Float[Array, "batch time pairs"], *, amplitude: float = 1.0
) -> tuple[Queries, Keys]:
    """Return queries and keys with their pairs rotated by angles, each in its dtype.

    Args:
        q: Queries.
        k: Keys.
        angles: Of each pair of each token, float32.
        amplitude: Factor on both results.
    """
    cos, sin = amplitude * jnp.cos(angles), amplitude * jnp.sin(angles)
    return rope(q, cos, sin), rope(k, cos, sin)


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
