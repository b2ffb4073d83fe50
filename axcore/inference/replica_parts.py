"""Where the arrays of each replica lie: on the devices at one place of a mesh's data axis."""

import numpy as np
from jax.sharding import Mesh

REPLICAS = "data"
"""The mesh axis along which there are replicas."""


def replica_meshes(mesh: Mesh) -> tuple[Mesh, ...]:
    """Returns the mesh of each replica, whose data axis has one place."""
    axis = mesh.axis_names.index(REPLICAS)
    return tuple(
        Mesh(np.take(mesh.devices, [place], axis), mesh.axis_names, axis_types=mesh.axis_types)
        for place in range(mesh.shape[REPLICAS])
    )
