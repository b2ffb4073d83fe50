"""Meshes, logical-axis rules, and the sharding of states and activations."""

from axcore.parallel.activations import ActivationSharding, is_split, shard, sharding_activations
from axcore.parallel.attention import on_each_device
from axcore.parallel.mesh import MESH_AXES, MeshShape, make_mesh, mesh_sizes
from axcore.parallel.rules import (
    ACTIVATION_RULES,
    PARAM_RULES,
    Rules,
    describe_sharding,
    param_shardings,
    partition_spec,
    shardings_like,
)

__all__ = [
    "ACTIVATION_RULES",
    "MESH_AXES",
    "PARAM_RULES",
    "ActivationSharding",
    "MeshShape",
    "Rules",
    "describe_sharding",
    "is_split",
    "make_mesh",
    "mesh_sizes",
    "on_each_device",
    "param_shardings",
    "partition_spec",
    "shard",
    "sharding_activations",
    "shardings_like",
]
