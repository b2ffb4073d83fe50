"""Positions for attention: what a position layer is called with, and the one that gives none.

A position layer is called with queries, keys and positions, and returns queries and keys.
"""

from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveInt, config
from axcore.module import Module

Queries = Float[Array, "batch time heads head_dim"]
Keys = Float[Array, "batch time kv_heads head_dim"]
Positions = Int[Array, "batch time"]


class NoPosition(Module):
    """Leaves queries and keys as they are. Slot protocol: the parent fills `head_dim`."""

    @config
    class Config(Module.Config["NoPosition"]):
        """Describes a `NoPosition`."""

        head_dim: PositiveInt = REQUIRED

    def forward(self, q: Queries, k: Keys, positions: Positions) -> tuple[Queries, Keys]:
        """Returns queries and keys."""
        return q, k
