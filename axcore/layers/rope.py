"""Positions for attention: rotary, and none."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, config
from axcore.errors import ConfigError
from axcore.module import Module


class NoPosition(Module):
    """Leaves queries and keys as they are. Slot protocol: the parent fills `head_dim`."""

    @config
    class Config(Module.Config):
        """Describes a `NoPosition`."""

        head_dim: int = REQUIRED

    def forward(
        self, x: Float[Array, "batch time heads head_dim"], positions: Int[Array, "batch time"]
    ) -> Float[Array, "batch time heads head_dim"]:
        """Returns the input."""
        return x


class RoPE(Module):
    """Rotates pairs of a head's dimensions by angles that grow with the position.

    Dimension `i` is paired with `i + head_dim / 2` (the layout of Hugging Face's checkpoints), and
    turns by `position * theta ** (-2 i / head_dim)`.

    Source: Su et al. 2021, arXiv:2104.09864, eq. 34. Slot protocol: the parent fills `head_dim`.
    """

    @config
    class Config(Module.Config):
        """Describes a `RoPE`.

        Args:
            head_dim: Size of a head; even.
            theta: Base of the wavelengths.
        """

        head_dim: int = REQUIRED
        theta: float = 10_000.0

    def setup(self, cfg: Config) -> None:
        """Checks that the head can be paired."""
        if cfg.head_dim % 2:
            raise ConfigError(f"head_dim is {cfg.head_dim}; rotary positions need it even")

    def forward(
        self, x: Float[Array, "batch time heads head_dim"], positions: Int[Array, "batch time"]
    ) -> Float[Array, "batch time heads head_dim"]:
        """Returns the rotated input in its dtype; angles are computed in float32."""
        half = self.config.head_dim // 2
        exponents = jnp.arange(half, dtype=jnp.float32) / half
        frequencies = self.config.theta**-exponents
        angles = positions.astype(jnp.float32)[:, :, None] * frequencies[None, None, :]
        cos, sin = jnp.cos(angles)[:, :, None, :], jnp.sin(angles)[:, :, None, :]
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
        return rotated.astype(x.dtype)
