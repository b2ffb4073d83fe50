"""Modifiers of a trainer's config. Each is a config whose `apply(cfg, hardware) -> cfg` is pure."""

from typing import Any

from axcore.config import config, evolve
from axcore.plugins import Hardware


@config
class Accumulate:
    """Runs every batch in more parts, one after the other: less memory, the same result.

    Args:
        factor: How many parts each part of now becomes.
    """

    factor: int = 2

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Returns a trainer's config with `factor` times as many micro-batches."""
        return evolve(cfg, num_micro_batches=cfg.num_micro_batches * self.factor)
