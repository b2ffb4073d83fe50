"""`SinusoidalPosition`: waves of a token's position, added to its vector."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveFloat, PositiveInt, config
from axcore.layers import Embedding, TokenInfo, rope_frequencies
from axcore.module import Module
from axl_attention.wrapping import refuse_second


class SinusoidalPosition(Module):
    """`embedding(token) + waves(position)`; replaces the embedding.

    Dimension `2 i` is `sin(position * theta ** (-2 i / dim))`, and `2 i + 1` its cosine.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5. Slot protocol: the parent fills
    `vocab_size` and `dim`, which is even. Use it with `NoPosition`.
    """

    @config
    class Config(Module.Config["SinusoidalPosition"]):
        """The config of a `SinusoidalPosition`.

        Args:
            vocab_size: Number of tokens.
            dim: Size of a vector; even.
            theta: Base of the wavelengths.
            embedding: The token table.
        """

        vocab_size: PositiveInt = REQUIRED
        dim: PositiveInt = REQUIRED
        theta: PositiveFloat = 10_000.0
        embedding: Module.Config = Embedding.Config()

    def setup(self, cfg: Config) -> None:
        """Build the embedding and computes the frequencies."""
        refuse_second(SinusoidalPosition, cfg.embedding)
        self.embedding = cfg.embedding.build(vocab_size=cfg.vocab_size, dim=cfg.dim)
        self.frequencies = rope_frequencies(cfg.dim, cfg.theta).astype("float32")

    @property
    def weight(self) -> Float[Array, "vocab dim"]:
        """The token table, for a tied head."""
        table: Float[Array, "vocab dim"] = self.embedding.weight
        return table

    def forward(
        self, tokens: Int[Array, "batch time"], info: TokenInfo
    ) -> Float[Array, "batch time dim"]:
        """Return the sum of both vectors; the waves are computed in float32."""
        x: Any = self.embedding(tokens, info)
        angles = info.positions.astype(jnp.float32)[..., None] * self.frequencies[None, None, :]
        waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        return x + waves.reshape(x.shape).astype(x.dtype)


def in_place_of(old: Any) -> SinusoidalPosition.Config:
    """Return the config that takes the place of an embedding without positions."""
    return SinusoidalPosition.Config(embedding=old)
