"""Rotary positions for longer rows: linear, NTK, Llama 3, YaRN and LongRoPE."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from axcore.config import REQUIRED, PositiveFloat, PositiveInt, config, evolve
from axcore.errors import ConfigError
from axcore.layers import KVCacheConfig, rope_frequencies, rotate
from axcore.module import Module
from axcore.ops import rope


class LinearRoPE(Module):
    """RoPE at `position / factor`. Slot protocol: the parent fills `head_dim`.

    Source: Chen et al. 2023, arXiv:2306.15595, eq. 4.
    """

    @config
    class Config(Module.Config["LinearRoPE"]):
        """The config of a `LinearRoPE`.

        Args:
            head_dim: Size of a head; even.
            theta: Base of the wavelengths.
            factor: How many times longer the rows are than those of the first training.
        """

        head_dim: PositiveInt = REQUIRED
        theta: PositiveFloat = REQUIRED
        factor: float = 4.0

    def setup(self, cfg: Config) -> None:
        """Compute the frequencies."""
        _check_factor(cfg.factor)
        self.frequencies = rope_frequencies(cfg.head_dim, cfg.theta) / cfg.factor

    def forward(self, q: Any, k: Any, positions: Any) -> tuple[Any, Any]:
        """Return queries and keys rotated."""
        return rotate(q, k, positions, frequencies=self.frequencies)


def _check_factor(factor: float) -> None:
    """Check the factor of a scaling.

    Raises:
        ConfigError: It would shorten the range, or leave nothing of it.
    """
    if not factor >= 1.0:
        raise ConfigError(f"factor is {factor}; rows become longer, by 1 or more")


class NTKRoPE(Module):
    """RoPE with base `theta * factor ** (head_dim / (head_dim - 2))`.

    The slowest pair is slowed down by `factor`, as linear scaling does, and the fastest not at all.

    Source: Peng et al. 2023, arXiv:2309.00071, section 3.1. Slot protocol: the parent
    fills `head_dim`.
    """

    @config
    class Config(Module.Config["NTKRoPE"]):
        """The config of an `NTKRoPE`.

        Args:
            head_dim: Size of a head; even, and more than 2.
            theta: Base of the wavelengths in the first training.
            factor: How many times longer the rows are than those of the first training.
        """

        head_dim: PositiveInt = REQUIRED
        theta: PositiveFloat = REQUIRED
        factor: float = 4.0

    def setup(self, cfg: Config) -> None:
        """Compute the frequencies."""
        _check_factor(cfg.factor)
        if cfg.head_dim <= 2:
            raise ConfigError(f"head_dim is {cfg.head_dim}; one pair has no range to be stretched")
        theta = cfg.theta * cfg.factor ** (cfg.head_dim / (cfg.head_dim - 2))
        self.frequencies = rope_frequencies(cfg.head_dim, theta)

    def forward(self, q: Any, k: Any, positions: Any) -> tuple[Any, Any]:
        """Return queries and keys rotated."""
        return rotate(q, k, positions, frequencies=self.frequencies)


class Llama3RoPE(Module):
    """RoPE whose long waves are stretched by `factor`, and short waves not at all.

    A wave is short below `original_length / high_frequency_factor` tokens and long above
    `original_length / low_frequency_factor`; in between both frequencies are mixed, linearly in the
    number of waves in an original row. Equal factors leave nothing in between, as in Llama 4 Scout.

    Source: `apply_scaling` in models/llama3_1/api/model.py of Meta's llama-models, 2024; the paper,
    Grattafiori et al. 2024, arXiv:2407.21783, has no formula. Slot protocol: the parent fills
    `head_dim`.
    """

    @config
    class Config(Module.Config["Llama3RoPE"]):
        """The config of a `Llama3RoPE`.

        Args:
            head_dim: Size of a head; even.
            theta: Base of the wavelengths.
            factor: How many times longer the rows are than those of the first training.
            original_length: Tokens of a row in the first training.
            low_frequency_factor: Waves in an original row, below which a wave is long.
            high_frequency_factor: Waves in an original row, above which a wave is short.
        """

        head_dim: PositiveInt = REQUIRED
        theta: PositiveFloat = REQUIRED
        factor: float = 8.0
        original_length: PositiveInt = 8192
        low_frequency_factor: float = 1.0
        high_frequency_factor: float = 4.0

    def setup(self, cfg: Config) -> None:
        """Compute the frequencies."""
        _check_factor(cfg.factor)
        low, high = cfg.low_frequency_factor, cfg.high_frequency_factor
        if not high >= low > 0:
            raise ConfigError(
                f"low_frequency_factor is {low} and high_frequency_factor {high}; "
                "short waves fit into a row no less often than long ones"
            )
        kept = rope_frequencies(cfg.head_dim, cfg.theta)
        waves = cfg.original_length * kept / (2 * np.pi)
        share_kept = np.clip((waves - low) / max(high - low, 1e-9), 0.0, 1.0)
        self.frequencies = share_kept * kept + (1.0 - share_kept) * kept / cfg.factor

    def forward(self, q: Any, k: Any, positions: Any) -> tuple[Any, Any]:
        """Return queries and keys rotated."""
        return rotate(q, k, positions, frequencies=self.frequencies)


class YaRN(Module):
    """RoPE whose fast pairs keep their frequency and whose slow pairs are slowed by `factor`.

    A pair is fast if it turns more than `beta_fast` times in `original_length` tokens, slow if less
    than `beta_slow` times; in between the two are mixed. Queries and keys are both multiplied by
    the attention factor, the logits so by its square.

    Source: Peng et al. 2023, arXiv:2309.00071, sections 3.2 and 3.4.
    Differs: the mixture is linear in the number of a pair, between whole numbers by default, as in
    the authors' program and the models that were published with it; the paper's formula has it
    linear in the turns. Slot protocol: the parent fills `head_dim`.
    """

    @config
    class Config(Module.Config["YaRN"]):
        """The config of a `YaRN`.

        Args:
            head_dim: Size of a head; even.
            theta: Base of the wavelengths.
            factor: How many times longer the rows are than those of the first training.
            original_length: Tokens of a row in the first training.
            beta_fast: Turns in a row above which a pair stays as it is.
            beta_slow: Turns in a row below which a pair is slowed by the full factor.
            attention_factor: On queries and keys; by default `0.1 ln(factor) + 1`.
            has_whole_bounds: Whether the first and the last pair of the mixture have whole numbers.
        """

        head_dim: PositiveInt = REQUIRED
        theta: PositiveFloat = REQUIRED
        factor: float = 4.0
        original_length: PositiveInt = 4096
        beta_fast: float = 32.0
        beta_slow: float = 1.0
        attention_factor: float | None = None
        has_whole_bounds: bool = True

    def setup(self, cfg: Config) -> None:
        """Compute the frequencies and the attention factor."""
        _check_factor(cfg.factor)
        if not cfg.beta_fast >= cfg.beta_slow > 0:
            raise ConfigError(
                f"beta_fast is {cfg.beta_fast} and beta_slow {cfg.beta_slow}; "
                "fast pairs turn no less often than slow ones"
            )
        kept = rope_frequencies(cfg.head_dim, cfg.theta)
        slowed = _share_slowed(cfg)
        self.frequencies = kept * (1.0 - slowed) + kept / cfg.factor * slowed
        self.amplitude = cfg.attention_factor
        if cfg.attention_factor is None:
            self.amplitude = yarn_attention_factor(cfg.factor)

    def forward(self, q: Any, k: Any, positions: Any) -> tuple[Any, Any]:
        """Return queries and keys rotated, and scaled by the attention factor."""
        return rotate(q, k, positions, frequencies=self.frequencies, amplitude=self.amplitude)


def yarn_attention_factor(factor: float, *, weight: float = 1.0) -> float:
    """Return `0.1 * weight * ln(factor) + 1`; `weight` is DeepSeek's `mscale`.

    Source: Peng et al. 2023, arXiv:2309.00071, section 3.4.
    """
    return 0.1 * weight * math.log(factor) + 1.0


def stretched_scale(factor: float, *, weight: float, width: int) -> float:
    """Return the scale of logits of keys with `width` dimensions, stretched on all of them.

    That is DeepSeek's way: the attention factor is in the scale, and not on what positions rotate.

    Args:
        factor: How many times longer the rows are.
        weight: DeepSeek's `mscale_all_dim`.
        width: Dimensions of a key, those without position included.
    """
    return yarn_attention_factor(factor, weight=weight) ** 2 / width**0.5


def weight_of_stretched_scale(factor: float, scale: float, *, width: int) -> float:
    """Return the weight of which `stretched_scale` makes a scale, to six digits."""
    return round(((scale * width**0.5) ** 0.5 - 1.0) / (0.1 * math.log(factor)), 6)


def _share_slowed(cfg: YaRN.Config) -> np.ndarray:
    """Return how much of the slowed frequency each pair gets, 0 to 1."""
    first, last = (_pair_that_turns(turns, cfg) for turns in (cfg.beta_fast, cfg.beta_slow))
    if cfg.has_whole_bounds:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, cfg.head_dim - 1)
    pairs = np.arange(cfg.head_dim // 2)
    return np.clip((pairs - first) / max(last - first, 1e-3), 0.0, 1.0)


def _pair_that_turns(turns: float, cfg: YaRN.Config) -> float:
    """Return the number, a fraction, of the pair that turns so often in an original row."""
    wavelength = cfg.original_length / turns
    return cfg.head_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(cfg.theta))


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

        def for_serving(self, cache_size: KVCacheConfig) -> "LongRoPE.Config":
            """Return the same for texts up to a length."""
            return evolve(self, served_length=cache_size.max_length)

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
