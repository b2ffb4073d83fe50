"""`serving_mesh`: over how many devices a model is split that serves, where nobody says."""

import math

import jax

from axcore.errors import ShardingError
from axcore.inference.config import EngineConfig
from axcore.inference.engine_room import serving_room, with_caches
from axcore.module import Module
from axcore.parallel import MESH_AXES, PARAM_RULES, MeshShape, param_shardings
from axcore.plugins import Hardware

WEIGHT_SHARE = 0.5
"""Part of a device's memory that weights may take; the rest is for caches and programs."""


def serving_mesh(
    model: Module, cfg: EngineConfig, hardware: Hardware, num_devices: int
) -> MeshShape:
    """Returns sizes by mesh axis: as few devices as hold the weights in half of their memory.

    Each token waits for collectives where a model is split, so it is no further than it must be.
    Where memory is not known, as that of hosts, one device has all; where not even all devices
    hold the weights so, the most are taken that the model divides over.

    Args:
        model: As it is trained.
        cfg: Of the engine: what it keeps weights in.
        hardware: What serves.
        num_devices: How many of its devices there are.
    """
    if hardware.memory_bytes is None:
        return {"model": 1}
    divisors = (count for count in range(1, num_devices + 1) if num_devices % count == 0)
    counts = [count for count in divisors if _divides(model, count)]
    held = WEIGHT_SHARE * hardware.memory_bytes / hardware.devices_per_chip
    nbytes = weight_bytes(model, cfg)
    return {"model": next((one for one in counts if nbytes / one <= held), counts[-1])}


def weight_bytes(model: Module, cfg: EngineConfig) -> int:
    """Returns what the weights of an engine take, on all devices that they are split over."""
    served = with_caches(model, cfg, serving_room(cfg), mesh=None, draft=None)
    leaves = jax.tree.leaves(served.conversion.abstract)
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def _divides(model: Module, count: int) -> bool:
    sizes = tuple(count if axis == "model" else 1 for axis in MESH_AXES)
    mesh = jax.sharding.AbstractMesh(sizes, MESH_AXES)
    try:
        param_shardings(model.param_specs(), PARAM_RULES, mesh)
    except ShardingError:
        return False
    return True
