"""Grouped matrix products under a mesh: each device multiplies its own rows, with no
communication but that of the matrices. For kernels that the compiler cannot split by itself.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from axcore.parallel.activations import active_mesh, current_rules, manual_axes
from axcore.parallel.rules import AnyMesh

Multiply = Callable[[Array, Array, Array], Array]


def grouped_matmul_on_each_device(
    multiply: Multiply, x_RD: Array, w_EDF: Array, group_sizes_E: Array
) -> Array:
    """Returns `multiply(x_RD, w_EDF, group_sizes_E)`, computed in parts where a mesh is set.

    Rows are split as the rules split `batch`, and stay sorted; every device has all matrices and
    counts how many rows of each group are its own. Rows that do not divide over the devices stay
    whole. Mesh axes over which the caller has split the work already (inside `shard_map`) are left
    as they are.

    Args:
        multiply: From rows, matrices and group sizes to `y_RF`.
        x_RD: Rows, sorted by group.
        w_EDF: A matrix for each group.
        group_sizes_E: Rows of each group, of all devices together.
    """
    mesh = active_mesh()
    free = frozenset() if mesh is None else frozenset(mesh.axis_names) - manual_axes()
    if mesh is None or not free:
        return multiply(x_RD, w_EDF, group_sizes_E)
    names = _row_axes(mesh, free, x_RD.shape[0])
    part_rows = x_RD.shape[0] // math.prod(mesh.shape[name] for name in names)

    def of_one_device(x_RD: Array, w_EDF: Array, group_sizes_E: Array) -> Array:
        first_row = jax.lax.axis_index(names) * part_rows if names else jnp.int32(0)
        return multiply(x_RD, w_EDF, _sizes_within(group_sizes_E, first_row, part_rows))

    rows: Any = PartitionSpec(names or None, None)  # type: ignore[no-untyped-call]
    whole: Any = PartitionSpec()  # type: ignore[no-untyped-call]
    in_parts = jax.shard_map(
        of_one_device,
        mesh=mesh,
        in_specs=(rows, whole, whole),
        out_specs=rows,
        axis_names=set(free),
        check_vma=False,
    )
    output: Array = in_parts(x_RD, w_EDF, group_sizes_E)
    return output


def _row_axes(mesh: AnyMesh, free: frozenset[str], num_rows: int) -> tuple[str, ...]:
    """Returns the free axes that split rows; none where rows do not divide over them."""
    rule = current_rules()["batch"]
    names = tuple(name for name in rule if name in free and mesh.shape[name] > 1)
    return () if num_rows % math.prod(mesh.shape[name] for name in names) else names


def _sizes_within(group_sizes_E: Array, first_row: Array, num_rows: int) -> Array:
    """Returns how many rows of each group stand in `[first_row, first_row + num_rows)`."""
    first = first_row.astype(group_sizes_E.dtype)
    ends_E = jnp.cumsum(group_sizes_E)
    clipped_starts_E = jnp.clip(ends_E - group_sizes_E, first, first + num_rows)
    return jnp.clip(ends_E, first, first + num_rows) - clipped_starts_E
