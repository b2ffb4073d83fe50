"""Mixtures of experts: the layer, its router, and ways to run the experts."""

from axcore.layers.moe.capacity import CapacityLimited
from axcore.layers.moe.dropless import Dropless
from axcore.layers.moe.experts import Experts
from axcore.layers.moe.layer import MoE
from axcore.layers.moe.router import Router
from axcore.layers.moe.routing import GroupLimit, Routing

__all__ = [
    "CapacityLimited",
    "Dropless",
    "Experts",
    "GroupLimit",
    "MoE",
    "Router",
    "Routing",
]
