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
        fn: From `x` to as many rows of the last dimension, each by itself.
        x: `[..., D]`.
        *shared: Arrays that every device gets whole.
    """
    mesh, free = _free_axes()
    if mesh is None:
        return fn(x, *shared)
    rows = _spec(*(names or None for names in _leading(x, mesh, free)))
    in_parts = jax.shard_map(
        fn,
        mesh=mesh,
        in_specs=(rows, *(_spec() for _ in shared)),
        out_specs=rows,
        axis_names=set(free),
        check_vma=False,
    )
    output: Array = in_parts(x, *shared)
    return output


def summed_over_devices(
    fn: Callable[..., Array], arrays: tuple[Array, ...], *shared: Array
) -> Array:
    """Returns `fn(*arrays, *shared)`, a sum over rows, computed in parts where a mesh is set.

    Rows are split as in `rows_on_each_device`.

    Args:
        fn: From rows of each array to a sum over them.
        arrays: `[..., D]`, with the same leading dimensions.
        *shared: Arrays that every device gets whole.
    """
    mesh, free = _free_axes()
    if mesh is None:
        return fn(*arrays, *shared)
    leading = _leading(arrays[0], mesh, free)
    split = tuple(name for names in leading for name in names)

    def own(*parts: Array) -> Array:
        total: Array = jax.lax.psum(fn(*parts), split)  # type: ignore[no-untyped-call]
        return total

    rows = _spec(*(names or None for names in leading))
    in_parts = jax.shard_map(
        own,
        mesh=mesh,
        in_specs=(*(rows for _ in arrays), *(_spec() for _ in shared)),
        out_specs=_spec(),
        axis_names=set(free),
        check_vma=False,
    )
    output: Array = in_parts(*arrays, *shared)
    return output


def _free_axes() -> tuple[AnyMesh | None, frozenset[str]]:
    """Returns the mesh and those of its axes that are still to be split over; None if there are
    none.
    """
    mesh = active_mesh()
    free = frozenset() if mesh is None else frozenset(mesh.axis_names) - manual_axes()
    return (mesh, free) if free else (None, free)


def _leading(x: Array, mesh: AnyMesh, free: frozenset[str]) -> list[tuple[str, ...]]:
    """Returns the mesh axes that split each leading dimension."""
    named = zip(LEADING, x.shape[:-1], strict=False)
    return [_names(axis, mesh, free, size) for axis, size in named]


def _spec(*entries: Any) -> Any:
    return PartitionSpec(*entries)  # type: ignore[no-untyped-call]


def _names(axis: str, mesh: AnyMesh, free: frozenset[str], size: int) -> tuple[str, ...]:
    """Returns the free mesh axes that split a dimension; none where it does not divide."""
    rule = current_rules().get(axis, ())
    names = tuple(name for name in rule if name in free and mesh.shape[name] > 1)
    return () if size % math.prod(mesh.shape[name] for name in names) else names
