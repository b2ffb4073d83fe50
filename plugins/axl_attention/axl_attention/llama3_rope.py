"""`Llama3RoPE`: rotary positions of Llama 3.1 and later, stretched by wavelength."""

from typing import Any

import numpy as np

from axcore.config import REQUIRED, PositiveFloat, PositiveInt, config
from axcore.errors import ConfigError
from axcore.layers import rope_frequencies, rotate
from axcore.module import Module
from axl_attention.linear_rope import check_factor


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
        check_factor(cfg.factor)
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
