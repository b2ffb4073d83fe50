"""Attention kernels under a mesh: each device works on its own rows and heads, with no
communication. For kernels that the compiler cannot split by itself.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.sharding import AbstractMesh, PartitionSpec

from axcore.ops import AttentionInputs
from axcore.parallel.activations import current_rules
from axcore.parallel.rules import partition_spec


def on_each_device(attend: Callable[[AttentionInputs], Array], inputs: AttentionInputs) -> Array:
    """Returns `attend(inputs)`, computed in parts where a mesh is set.

    Args:
        attend: From queries, keys, values and segments to the output `[B, T, N, V]`.
        inputs: With no parts but those.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return attend(inputs)
    rows, heads = _splits(inputs, mesh)
    split_BTNH: Any = PartitionSpec(rows, None, heads, None)  # type: ignore[no-untyped-call]
    split_BT: Any = PartitionSpec(rows, None)  # type: ignore[no-untyped-call]
    if inputs.q_segments_BT is None:
        split_BT = None
    in_specs = AttentionInputs(
        q_BTNH=split_BTNH,
        k_BSKH=split_BTNH,
        v_BSKV=split_BTNH,
        q_segments_BT=split_BT,
        k_segments_BS=split_BT,
    )
    in_parts = jax.shard_map(attend, in_specs=(in_specs,), out_specs=split_BTNH, check_vma=False)
    output: Array = in_parts(inputs)
    return output


def _splits(inputs: AttentionInputs, mesh: AbstractMesh) -> tuple[Any, Any]:
    """Returns the mesh axes over which rows and heads are split, None where they stay whole.

    Query heads are split as key heads are, or else a device would lack the keys it needs.
    """
    rows, heads = partition_spec(("batch", "kv_heads"), current_rules(), mesh)
    if inputs.q_BTNH.shape[0] % _ways(rows, mesh):
        rows = None
    if inputs.k_BSKH.shape[2] % _ways(heads, mesh):
        heads = None
    return rows, heads


def _ways(entry: Any, mesh: AbstractMesh) -> int:
    names = (entry,) if isinstance(entry, str) else entry or ()
    return math.prod(mesh.shape[name] for name in names)
