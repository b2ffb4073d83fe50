"""Row-wise functions under a mesh: each device works on its own rows, with no communication but
that of the gradients of what all rows share. For kernels that the compiler cannot split by itself.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.sharding import PartitionSpec

from axcore.parallel.activations import active_mesh, current_rules, manual_axes
from axcore.parallel.rules import AnyMesh

LEADING = ("batch", "time", "heads")
"""What the leading dimensions of an activation stand for, in order."""


def rows_on_each_device(fn: Callable[..., Array], x: Array, *shared: Array) -> Array:
    """Returns `fn(x, *shared)`, computed in parts where a mesh is set.

    All dimensions of `x` but the last are split as the activation rules split batch, time and
    heads; one that does not divide stays whole. Mesh axes over which the caller has split the work
    already (inside `shard_map`) are left as they are.

    Args:
        fn: From `x` to an array of the same shape, each row of the last dimension by itself.
        x: `[..., D]`.
        *shared: Arrays that every device gets whole.
    """
    mesh = active_mesh()
    free = frozenset() if mesh is None else frozenset(mesh.axis_names) - manual_axes()
    if mesh is None or not free:
        return fn(x, *shared)
    entries = [
        _names(axis, mesh, free, size) or None
        for axis, size in zip(LEADING, x.shape[:-1], strict=False)
    ]
    rows: Any = PartitionSpec(*entries)  # type: ignore[no-untyped-call]
    whole: Any = PartitionSpec()  # type: ignore[no-untyped-call]
    in_parts = jax.shard_map(
        fn,
        mesh=mesh,
        in_specs=(rows, *(whole for _ in shared)),
        out_specs=rows,
        axis_names=set(free),
        check_vma=False,
    )
    output: Array = in_parts(x, *shared)
    return output


def _names(axis: str, mesh: AnyMesh, free: frozenset[str], size: int) -> tuple[str, ...]:
    """Returns the free mesh axes that split a dimension; none where it does not divide."""
    rule = current_rules().get(axis, ())
    names = tuple(name for name in rule if name in free and mesh.shape[name] > 1)
    return () if size % math.prod(mesh.shape[name] for name in names) else names
