"""Meshes, logical-axis rules and the sharding of states and activations."""

from axcore.parallel.activations import (
    ActivationSharding,
    ContextParallelism,
    is_sharded,
    num_shards,
    shard,
    sharded_mesh_axes,
    sharding_activations,
)
from axcore.parallel.experts import expert_mesh_axes, shard_map_over_tokens, vmap_local_experts
from axcore.parallel.mesh import MESH_AXES, MeshShape, make_mesh, mesh_sizes, put_everywhere
from axcore.parallel.pipeline import PipelineSchedule, run_pipeline
from axcore.parallel.rules import (
    ACTIVATION_RULES,
    PARAM_RULES,
    AnyMesh,
    Rules,
    ShardedArray,
    bytes_per_device,
    describe_sharding,
    param_shardings,
    partition_spec,
    shardings_like,
    unused_mesh_axes,
    where_divisible,
)
from axcore.parallel.shard_op import OpSharding

__all__ = [
    "ACTIVATION_RULES",
    "MESH_AXES",
    "PARAM_RULES",
    "ActivationSharding",
    "AnyMesh",
    "ContextParallelism",
    "MeshShape",
    "OpSharding",
    "PipelineSchedule",
    "Rules",
    "ShardedArray",
    "bytes_per_device",
    "describe_sharding",
    "expert_mesh_axes",
    "is_sharded",
    "make_mesh",
    "mesh_sizes",
    "num_shards",
    "param_shardings",
    "partition_spec",
    "put_everywhere",
    "run_pipeline",
    "shard",
    "shard_map_over_tokens",
    "sharded_mesh_axes",
    "sharding_activations",
    "shardings_like",
    "unused_mesh_axes",
    "vmap_local_experts",
    "where_divisible",
]
