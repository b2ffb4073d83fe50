"""`TemperatureTuning`: attention that stays sharp over long rows, for layers without positions."""

from typing import Any

import jax.numpy as jnp

from axcore.config import REQUIRED, PositiveInt, config
from axcore.module import Module


class TemperatureTuning(Module):
    """Multiplies queries by `1 + strength * ln(1 + floor((position + 1) / interval))`.

    Over more keys softmax gets flatter; larger logits make up for it. Queries and keys get no
    position otherwise.

    Source: Nakanishi 2025, arXiv:2501.19399, eq. 3; by steps as in models/llama4/model.py of Meta's
    llama-models, 2025. Slot protocol: the parent fills `head_dim`.
    """

    @config
    class Config(Module.Config["TemperatureTuning"]):
        """The config of a `TemperatureTuning`.

        Args:
            head_dim: Size of a head.
            interval: Tokens after which the factor grows.
            strength: By how much it grows.
        """

        head_dim: PositiveInt = REQUIRED
        interval: PositiveInt = 8192
        strength: float = 0.1

    def forward(self, q: Any, k: Any, positions: Any) -> tuple[Any, Any]:
        """Return queries, scaled in float32, each in its dtype, and keys as they are."""
        cfg = self.config
        steps = jnp.floor((positions.astype(jnp.float32) + 1.0) / cfg.interval)
        factor = 1.0 + cfg.strength * jnp.log1p(steps)
        return (q.astype(jnp.float32) * factor[:, :, None, None]).astype(q.dtype), k
