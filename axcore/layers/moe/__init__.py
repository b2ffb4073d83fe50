"""Mixtures of experts: the layer, its router, and ways to run the experts."""

from axcore.layers.moe.experts import CapacityLimited, Dropless, Experts, MoE
from axcore.layers.moe.router import (
    RECORDED_ROUTES,
    REPLAYED_ROUTES,
    GroupLimit,
    Router,
    Routes,
    Routing,
    routes_of_token,
)

__all__ = [
    "RECORDED_ROUTES",
    "REPLAYED_ROUTES",
    "CapacityLimited",
    "Dropless",
    "Experts",
    "GroupLimit",
    "MoE",
    "Router",
    "Routes",
    "Routing",
    "routes_of_token",
]
