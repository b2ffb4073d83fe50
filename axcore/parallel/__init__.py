"""Meshes, logical-axis rules, the sharding of states and activations, and several processes."""

from axcore.parallel.activations import (
    ActivationSharding,
    SplitAttention,
    is_split,
    shard,
    split_axes,
    split_ways,
)
from axcore.parallel.attention import (
    backward_on_each_device,
    forward_on_each_device,
    on_each_device,
)
from axcore.parallel.by_hand import each_expert, expert_axes, on_own_tokens
from axcore.parallel.context import sharding_activations
from axcore.parallel.cross_entropy import cross_entropy_on_each_device
from axcore.parallel.cross_entropy_split import CrossEntropySplit
from axcore.parallel.decode_attention import decode_attention_on_each_device
from axcore.parallel.grouped_matmul import grouped_matmul_on_each_device
from axcore.parallel.mesh import MESH_AXES, MeshShape, make_mesh, mesh_sizes
from axcore.parallel.pipeline import PipelineSchedule, run_pipeline
from axcore.parallel.processes import (
    TimeLimits,
    is_first,
    join_processes,
    leave,
    process_count,
    process_index,
    share,
)
from axcore.parallel.report import (
    ShardedArray,
    bytes_per_device,
    describe_sharding,
    unused_mesh_axes,
)
from axcore.parallel.rows import rows_on_each_device, summed_over_devices
from axcore.parallel.rules import (
    ACTIVATION_RULES,
    PARAM_RULES,
    AnyMesh,
    Rules,
    param_shardings,
    partition_spec,
    shardings_like,
)
from axcore.parallel.telling import barrier, from_each, from_first, gather

__all__ = [
    "ACTIVATION_RULES",
    "MESH_AXES",
    "PARAM_RULES",
    "ActivationSharding",
    "AnyMesh",
    "CrossEntropySplit",
    "MeshShape",
    "PipelineSchedule",
    "Rules",
    "ShardedArray",
    "SplitAttention",
    "TimeLimits",
    "backward_on_each_device",
    "barrier",
    "bytes_per_device",
    "cross_entropy_on_each_device",
    "decode_attention_on_each_device",
    "describe_sharding",
    "each_expert",
    "expert_axes",
    "forward_on_each_device",
    "from_each",
    "from_first",
    "gather",
    "grouped_matmul_on_each_device",
    "is_first",
    "is_split",
    "join_processes",
    "leave",
    "make_mesh",
    "mesh_sizes",
    "on_each_device",
    "on_own_tokens",
    "param_shardings",
    "partition_spec",
    "process_count",
    "process_index",
    "rows_on_each_device",
    "run_pipeline",
    "shard",
    "sharding_activations",
    "shardings_like",
    "share",
    "split_axes",
    "split_ways",
    "summed_over_devices",
    "unused_mesh_axes",
]
