"""Meshes: devices arranged along the six axes that sharding rules speak of."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh

from axcore.config import name_the_known
from axcore.errors import ShardingError

MESH_AXES = ("pipeline", "data", "fsdp", "expert", "seq", "model")
"""All mesh axes, outermost first: the innermost share the fastest links."""

MeshShape = Mapping[str, int]
"""Sizes by axis, 1 where unnamed; one of them may be -1, all devices that are left."""


def make_mesh(shape: MeshShape, devices: Sequence[Any] | None = None) -> Mesh:
    """Returns a mesh over the devices, all of jax's by default.

    Raises:
        ShardingError: An axis is unknown, or the sizes do not multiply out to the devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = mesh_sizes(shape, len(devices))
    return jax.make_mesh(
        sizes, MESH_AXES, axis_types=(AxisType.Auto,) * len(sizes), devices=devices
    )


def mesh_sizes(shape: MeshShape, num_devices: int) -> tuple[int, ...]:
    """Returns the size of every mesh axis, in the order of `MESH_AXES`.

    Raises:
        ShardingError: As `make_mesh`.
    """
    for name, size in shape.items():
        if name not in MESH_AXES:
            raise ShardingError(
                f"no mesh axis is named {name!r}",
                where="mesh",
                mend=name_the_known(name, MESH_AXES),
            )
        if size < 1 and size != -1:
            raise ShardingError(
                f"mesh axis {name} has size {size}", where="mesh", mend="1 or more, or -1"
            )
    free = [name for name, size in shape.items() if size == -1]
    fixed = math.prod(size for size in shape.values() if size != -1)
    if len(free) > 1:
        raise ShardingError(
            f"mesh axes {', '.join(free)} are all -1", where="mesh", mend="leave one of them free"
        )
    if num_devices % fixed or (not free and fixed != num_devices):
        text = " x ".join(f"{name} {size}" for name, size in shape.items())
        raise ShardingError(
            f"mesh {text} needs {fixed} devices{' or a multiple' if free else ''}; there are "
            f"{num_devices}",
            where="mesh",
            mend="change a size, or set one to -1 for all devices that are left",
        )
    rest = num_devices // fixed
    return tuple(rest if shape.get(axis, 1) == -1 else shape.get(axis, 1) for axis in MESH_AXES)
