"""Positions: rotary for a part of each head, learned, and sinusoidal."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveFloat, PositiveInt, config, evolve
from axcore.errors import ConfigError
from axcore.layers import Embedding, LearnedPosition, RoPE, TokenInfo, rope_frequencies
from axcore.module import Module
from axl_attention.wrapping import refuse_second


class PartialRotary(Module):
    """Give the first `fraction` of each head's dimensions positions, and the others none.

    Source: Black et al. 2022, arXiv:2204.06745, section 2. Slot protocol: the parent fills
    `head_dim`.
    """

    @config
    class Config(Module.Config["PartialRotary"]):
        """The config of a `PartialRotary`.

        Args:
            head_dim: Size of a head.
            fraction: Share of its dimensions that get positions: an even number of them.
            inner: The positions that they get.
        """

        head_dim: PositiveInt = REQUIRED
        fraction: float = 0.5
        inner: Module.Config = RoPE.Config()

    def setup(self, cfg: Config) -> None:
        """Build the positions for their part of the head."""
        refuse_second(PartialRotary, cfg.inner)
        self.width = int(cfg.head_dim * cfg.fraction)
        if not 0 < self.width <= cfg.head_dim or self.width % 2:
            raise ConfigError(
                f"fraction is {cfg.fraction}, which gives {self.width} of {cfg.head_dim} "
                "dimensions positions; expected an even number from 2 on",
                hint=f"set fraction to an even number / {cfg.head_dim}",
            )
        self.inner = cfg.inner.build(head_dim=self.width)

    def forward(self, q: Any, k: Any, positions: Any) -> tuple[Any, Any]:
        """Return queries and keys, rotated in their first dimensions."""
        width = self.width
        transposed_q, transposed_k = self.inner(q[..., :width], k[..., :width], positions)
        q = jnp.concatenate([transposed_q, q[..., width:]], axis=-1)
        return q, jnp.concatenate([transposed_k, k[..., width:]], axis=-1)


def with_partial_rotary(old: Any) -> PartialRotary.Config:
    """Return the config that takes the place of positions for the full head."""
    return PartialRotary.Config(inner=old)


class LongRowQueries(Module):
    """Positions, and queries times `1 + strength * ln(1 + floor(position / interval))`.

    Over more keys softmax gets flatter; larger logits make up for it. The first `interval` tokens
    are as without it.

    Source: Nakanishi 2025, arXiv:2501.19399, eq. 3; by steps as in Ministral 3, Mistral AI 2025.
    Slot protocol: the parent fills `head_dim`.
    """

    @config
    class Config(Module.Config["LongRowQueries"]):
        """The config of `LongRowQueries`.

        Args:
            head_dim: Size of a head.
            interval: Tokens after which the factor grows.
            strength: By how much it grows.
            inner: The positions.
        """

        head_dim: PositiveInt = REQUIRED
        interval: PositiveInt = 8192
        strength: float = 0.1
        inner: Module.Config = RoPE.Config()

    def setup(self, cfg: Config) -> None:
        """Build the positions."""
        refuse_second(LongRowQueries, cfg.inner)
        self.inner = cfg.inner.build(head_dim=cfg.head_dim)

    def forward(self, q: Any, k: Any, positions: Any) -> tuple[Any, Any]:
        """Return queries and keys with positions, each in its dtype; the factor is float32."""
        q, k = self.inner(q, k, positions)
        steps = (positions // self.config.interval).astype(jnp.float32)
        factor = 1.0 + self.config.strength * jnp.log1p(steps)
        return (q.astype(jnp.float32) * factor[:, :, None, None]).astype(q.dtype), k


def with_learned_position(old: Any) -> LearnedPosition.Config:
    """Return the config that takes the place of an embedding without positions."""
    return LearnedPosition.Config(embedding=old)


class OffsetPosition(LearnedPosition):
    """A learned vector for each position, in a table whose first two rows are not used.

    Source: Zhang et al. 2022, arXiv:2205.01068, in whose weights padding has the second row.
    """

    OFFSET = 2

    @config
    class Config(LearnedPosition.Config):
        """The config of an `OffsetPosition`; its fields are those of `LearnedPosition`."""

    def setup(self, cfg: Config) -> None:
        """Build the embedding, and declare a table with two more rows."""
        super().setup(evolve(cfg, max_length=cfg.max_length + self.OFFSET))

    def forward(
        self, tokens: Int[Array, "batch time"], info: TokenInfo
    ) -> Float[Array, "batch time dim"]:
        """Return the sum of both vectors."""
        return super().forward(tokens, info._replace(positions=info.positions + self.OFFSET))


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
        """Build the embedding and compute the frequencies."""
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


def with_sinusoidal_position(old: Any) -> SinusoidalPosition.Config:
    """Return the config that takes the place of an embedding without positions."""
    return SinusoidalPosition.Config(embedding=old)
