"""Where the arrays of each replica lie: on the devices at one place of a mesh's data axis."""

from typing import Any, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from axcore.errors import ConfigError
from axcore.inference.cached_model import mesh_of
from axcore.inference.engine_room import on_mesh
from axcore.module import Module

REPLICAS = "data"
"""The mesh axis along which there are replicas."""


def replica_meshes(mesh: Mesh) -> tuple[Mesh, ...]:
    """Returns the mesh of each replica, whose data axis has one place."""
    axis = mesh.axis_names.index(REPLICAS)
    return tuple(
        Mesh(np.take(mesh.devices, [place], axis), mesh.axis_names, axis_types=mesh.axis_types)
        for place in range(mesh.shape[REPLICAS])
    )


def replica_states(model: Module, state: Any, mesh: Mesh) -> list[Any]:
    """Returns a model's state for each replica, on its own devices.

    Raises:
        ConfigError: It is not of the model.
        ShardingError: The model does not divide over the mesh.
    """
    placed = state
    if mesh_of(state) != mesh:
        try:
            placed = on_mesh(model, state, mesh)
        except ValueError as error:
            raise ConfigError(
                f"the arrays are not those of the model: {error}",
                hint="give a state of the same model",
            ) from error
    return [
        jax.tree.map(lambda leaf, own=own: _part(leaf, own), placed) for own in replica_meshes(mesh)
    ]


def _part(leaf: jax.Array, mesh: Mesh) -> jax.Array:
    """Returns an array on some devices of its mesh; what these have of it is not copied."""
    assert isinstance(leaf.sharding, NamedSharding)
    lies = NamedSharding(mesh, leaf.sharding.spec)
    wanted = lies.addressable_devices_indices_map(leaf.shape)
    there = {shard.device: shard for shard in leaf.addressable_shards}
    if any(there[device].index != index for device, index in wanted.items()):
        return cast(jax.Array, jax.device_put(leaf, lies))
    parts = [there[device].data for device in wanted]
    return jax.make_array_from_single_device_arrays(leaf.shape, lies, parts)
