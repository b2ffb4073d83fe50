"""Positions for attention: `RoPE`, rotary positions, and `NoPosition`.

A position layer is called with queries, keys and positions, and returns queries and keys.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveFloat, PositiveInt, config
from axcore.errors import ConfigError
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
