"""`LinearRoPE`: rotary positions, squeezed into the range that a model was trained on."""

from typing import Any

from axcore.config import REQUIRED, PositiveFloat, PositiveInt, config
from axcore.errors import ConfigError
from axcore.layers import rope_frequencies, rotate
from axcore.module import Module


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
        check_factor(cfg.factor)
        self.frequencies = rope_frequencies(cfg.head_dim, cfg.theta) / cfg.factor

    def forward(self, q: Any, k: Any, positions: Any) -> tuple[Any, Any]:
        """Return queries and keys rotated."""
        return rotate(q, k, positions, frequencies=self.frequencies)


def check_factor(factor: float) -> None:
    """Check the factor of a scaling.

    Raises:
        ConfigError: It would shorten the range, or leave nothing of it.
    """
    if not factor >= 1.0:
        raise ConfigError(f"factor is {factor}; rows become longer, by 1 or more")
