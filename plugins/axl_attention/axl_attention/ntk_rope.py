"""`NTKRoPE`: rotary positions of a larger base, so that short distances stay as they were."""

from typing import Any

from axcore.config import REQUIRED, PositiveFloat, PositiveInt, config
from axcore.errors import ConfigError
from axcore.layers import rope_frequencies, rotate
from axcore.module import Module
from axl_attention.linear_rope import check_factor


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
        check_factor(cfg.factor)
        if cfg.head_dim <= 2:
            raise ConfigError(f"head_dim is {cfg.head_dim}; one pair has no range to be stretched")
        theta = cfg.theta * cfg.factor ** (cfg.head_dim / (cfg.head_dim - 2))
        self.frequencies = rope_frequencies(cfg.head_dim, theta)

    def forward(self, q: Any, k: Any, positions: Any) -> tuple[Any, Any]:
        """Return queries and keys rotated."""
        return rotate(q, k, positions, frequencies=self.frequencies)
