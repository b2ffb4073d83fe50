"""Mixtures of experts: the layer, its router, and ways to run the experts."""

from axcore.layers.moe.experts import CapacityLimited, Dropless, Experts, MoE
from axcore.layers.moe.router import (
    GroupLimit,
    Router,
    Routing,
)

__all__ = [
    "CapacityLimited",
    "Dropless",
    "Experts",
    "GroupLimit",
    "MoE",
    "Router",
    "Routing",
]
