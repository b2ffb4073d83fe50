"""Decode attention under a mesh: each device works on its own rows and heads, with no
communication. For kernels that the compiler cannot split by itself.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.sharding import PartitionSpec

from axcore.ops import DecodeInputs
from axcore.parallel.activations import active_mesh, current_rules, manual_axes


def decode_attention_on_each_device(
    attend: Callable[[DecodeInputs], Array], inputs: DecodeInputs
) -> Array:
    """Returns `attend(inputs)`, computed in parts where a mesh is set.

    Rows are split as the activation rules split `batch`, heads of keys and of queries as they split
    `kv_heads`; a dimension that does not divide stays whole. A pool of pages belongs to all rows:
    it is split by heads only. Where the call stands inside of a `shard_map` it has been split
    already.

    Args:
        attend: From a call's arrays to the output `[B, T, N, V]`.
        inputs: The arrays of the call.
    """
    mesh = active_mesh()
    free = frozenset() if mesh is None else frozenset(mesh.axis_names) - manual_axes()
    if mesh is None or not free:
        return attend(inputs)

    def names(axis: str, size: int) -> tuple[str, ...] | None:
        rule = current_rules()[axis]
        names = tuple(name for name in rule if name in free and mesh.shape[name] > 1)
        return None if size % math.prod(mesh.shape[name] for name in names) else names

    rows, heads = names("batch", inputs.q_BTNH.shape[0]), names("kv_heads", inputs.k.shape[2])
    cache = _spec(rows if inputs.page_table_BP is None else None, None, heads, None)
    specs = DecodeInputs(
        q_BTNH=_spec(rows, None, heads, None),
        k=cache,
        v=cache,
        lengths_B=_spec(rows),
        page_table_BP=None if inputs.page_table_BP is None else _spec(rows, None),
        sinks_N=None if inputs.sinks_N is None else _spec(heads),
    )
    in_parts = jax.shard_map(
        attend,
        mesh=mesh,
        in_specs=(specs,),
        out_specs=_spec(rows, None, heads, None),
        axis_names=set(free),
        check_vma=False,
    )
    o_BTNV: Array = in_parts(inputs)
    return o_BTNV


def _spec(*entries: tuple[str, ...] | None) -> Any:
    return PartitionSpec(*(names or None for names in entries))  # type: ignore[no-untyped-call]
