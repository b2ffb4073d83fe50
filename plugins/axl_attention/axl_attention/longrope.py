"""`LongRoPE`: rotary positions with other frequencies in long documents than in short ones."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from axcore.config import REQUIRED, PositiveFloat, PositiveInt, config, evolve
from axcore.errors import ConfigError
from axcore.layers import KVCacheConfig, rope_frequencies
from axcore.module import Module
from axcore.ops import rope


class LongRoPE(Module):
    """RoPE whose pairs are slowed each by a factor of its own, found by search.

    All tokens of a document of more than `original_length` tokens turn by the long factors, those
    of others by the short ones: a token's rotation depends on those behind it. A model that serves
    keeps keys as they were rotated; there all turn by the long factors if the longest text may have
    more tokens than that, and by the short ones if not. Queries and keys are both multiplied by the
    attention factor.

    Source: Ding et al. 2024, arXiv:2402.13753, section 3.3 and eq. 4. Slot protocol: the parent
    fills `head_dim`.
    """

    @config
    class Config(Module.Config["LongRoPE"]):
        """The config of a `LongRoPE`.

        Args:
            head_dim: Size of a head; even.
            theta: Base of the wavelengths.
            short_factors: What pairs are slowed by in short documents, `head_dim / 2` of them.
            long_factors: What they are slowed by in long ones.
            original_length: Tokens of the longest short document.
            attention_factor: On queries and keys.
            served_length: Tokens of the longest text, where the model serves.
        """

        head_dim: PositiveInt = REQUIRED
        theta: PositiveFloat = REQUIRED
        short_factors: tuple[float, ...] = REQUIRED
        long_factors: tuple[float, ...] = REQUIRED
        original_length: PositiveInt = 4096
        attention_factor: PositiveFloat = 1.0
        served_length: PositiveInt | None = None

        def for_serving(self, room: KVCacheConfig) -> "LongRoPE.Config":
            """Return the same for texts up to a length."""
            return evolve(self, served_length=room.max_length)

    def setup(self, cfg: Config) -> None:
        """Compute both sets of frequencies."""
        plain = rope_frequencies(cfg.head_dim, cfg.theta)
        self.short, self.long = (
            (plain / _checked(name, getattr(cfg, name), len(plain))).astype(np.float32)
            for name in ("short_factors", "long_factors")
        )

    def forward(self, q: Any, k: Any, positions: Any) -> tuple[Any, Any]:
        """Return queries and keys rotated, and scaled by the attention factor."""
        cfg = self.config
        if cfg.served_length is None:
            lengths = document_lengths(positions)
        else:
            lengths = jnp.full((1, 1), cfg.served_length, positions.dtype)
        is_long = lengths[..., None] > cfg.original_length
        frequencies = jnp.where(is_long, self.long, self.short)
        angles = positions.astype(jnp.float32)[..., None] * frequencies
        factor = cfg.attention_factor
        cos, sin = factor * jnp.cos(angles), factor * jnp.sin(angles)
        return rope(q, cos, sin), rope(k, cos, sin)


def document_lengths(positions: Int[Array, "batch time"]) -> Int[Array, "batch time"]:
    """Return the length of each token's document: positions count up to its end."""
    time = positions.shape[1]
    following = jnp.pad(positions[:, 1:], ((0, 0), (0, 1)), constant_values=-1)
    place = jnp.arange(time, dtype=jnp.int32)[None]
    ends = jnp.where(following == positions + 1, time, place)
    last = jax.lax.cummin(ends, axis=1, reverse=True)
    return jnp.take_along_axis(positions, last, axis=1) + 1


def longrope_attention_factor(factor: float, original_length: int) -> float:
    """Return the attention factor of rows that are `factor` times as long as those of training.

    Source: Ding et al. 2024, arXiv:2402.13753, as in the configs of Phi-3: the square root of
    `1 + ln(factor) / ln(original_length)`.
    """
    return math.sqrt(1.0 + math.log(factor) / math.log(original_length)) if factor > 1.0 else 1.0


def _checked(name: str, factors: tuple[float, ...], count: int) -> np.ndarray:
    if len(factors) != count or not all(factor > 0 for factor in factors):
        raise ConfigError(
            f"{name} has {len(factors)} numbers, the least of them {min(factors, default=None)}; "
            f"expected one above 0 for each of {count} pairs",
            where=name,
        )
    return np.array(factors)
