"""`YaRN`: rotary positions stretched pair by pair, by how often a pair turns in a row."""

import math
from typing import Any

import numpy as np

from axcore.config import REQUIRED, PositiveFloat, PositiveInt, config
from axcore.errors import ConfigError
from axcore.layers import rope_frequencies, rotate
from axcore.module import Module
from axl_attention.linear_rope import check_factor


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
            beta_slow: Turns in a row below which a pair is slowed by the whole factor.
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
        check_factor(cfg.factor)
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
