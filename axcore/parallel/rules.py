"""Logical-axis rules: which mesh axes each named dimension is split over, and what that comes to.

Layers name dimensions (`embed`, `mlp`, `heads`), never mesh axes. One table serves parameters and
one activations; a mesh rule may change them.
"""

import math
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

import attrs
import jax
from immutabledict import immutabledict
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from axcore.config import suggest_names
from axcore.errors import ShardingError
from axcore.module import Axes, ParamSpec

AnyMesh = Mesh | AbstractMesh
"""A mesh of devices, or of their number only, for hardware you do not have."""

Rules = Mapping[str, tuple[str, ...]]
"""From a logical axis to the mesh axes that split it; an empty tuple replicates it."""

PARAM_RULES: Rules = immutabledict(
    {
        "layers": (),
        "stages": ("pipeline",),
        "expert": ("expert",),
        "vocab": ("model",),
        "embed": ("fsdp",),
        "mlp": ("model",),
        "heads": ("model",),
        "kv_heads": ("model",),
        "norm": (),
    }
)
"""Fully sharded over `fsdp` along `embed`, tensor-parallel over `model` along the rest; layers of a
pipeline by stage."""

ACTIVATION_RULES: Rules = immutabledict(
    {
        "stages": ("pipeline",),
        "batch": ("data", "fsdp", "expert"),
        "time": ("seq",),
        "embed": (),
        "mlp": ("model",),
        "heads": ("model",),
        "kv_heads": ("model",),
        "vocab": ("model",),
        "expert": ("expert",),
    }
)
"""The batch over all data axes, time over `seq`, heads and hidden units over `model`."""


def partition_spec(axes: Axes, rules: Rules, mesh: AnyMesh, *, where: str = "") -> PartitionSpec:
    """Return how an array with these logical axes is split; axes of size 1 are left out.

    Raises:
        ShardingError: A logical or mesh axis is unknown, or a mesh axis is used twice.
    """
    used: set[str] = set()
    entries: list[Any] = []
    for axis in axes:
        names = () if axis is None else _mesh_axes(axis, rules, mesh, where)
        twice = [name for name in names if name in used]
        if twice:
            raise ShardingError(
                f"axes {axes} would split two dimensions over mesh axis {twice[0]!r}",
                where=where,
                hint="change the rules so that one of the two is not split",
            )
        used.update(names)
        entries.append(names[0] if len(names) == 1 else names or None)
    return PartitionSpec(*entries)  # type: ignore[no-untyped-call]


def _mesh_axes(axis: str, rules: Rules, mesh: AnyMesh, where: str) -> tuple[str, ...]:
    if axis not in rules:
        raise ShardingError(
            f"no rule for the logical axis {axis!r}",
            where=where,
            hint=f"{suggest_names(axis, rules)}; or add rules[{axis!r}] = () to replicate it",
        )
    for name in rules[axis]:
        if name not in mesh.shape:
            raise ShardingError(
                f"the rule for {axis!r} names the mesh axis {name!r}, which does not exist",
                where=where,
                hint=suggest_names(name, mesh.shape),
            )
    return tuple(name for name in rules[axis] if mesh.shape[name] > 1)


def param_shardings(specs: Any, rules: Rules, mesh: AnyMesh) -> Any:
    """Return a tree of `NamedSharding` for a tree of parameter specs.

    Raises:
        ShardingError: Listing every dimension that does not divide over its mesh axes.
    """
    problems: list[str] = []

    def sharding(spec: ParamSpec) -> NamedSharding:
        parts = partition_spec(spec.axes, rules, mesh, where=spec.name)
        problems.extend(_indivisible(spec, parts, mesh))
        return NamedSharding(mesh, parts)

    shardings = jax.tree.map(sharding, specs, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))
    if problems:  # all at once, or a mesh would be found by trial and error
        raise ShardingError(
            "parameters do not divide over the mesh:\n  " + "\n  ".join(problems),
            where="mesh",
            hint="change the dimension, the mesh's sizes, or the rule of that axis",
        )
    return shardings


def _indivisible(spec: ParamSpec, parts: PartitionSpec, mesh: AnyMesh) -> list[str]:
    found = []
    for size, axis, entry in zip(spec.shape, spec.axes, parts, strict=True):
        ways = _ways(entry, mesh)
        if size % ways:
            names = (entry,) if isinstance(entry, str) else entry
            found.append(f"{spec.name}: {axis} is {size}, {'x'.join(names)} is {ways}")
    return found


def shardings_like(tree: Any, params: Any, shardings: Any, mesh: AnyMesh) -> Any:
    """Return shardings for an abstract tree that contains copies of `params` somewhere inside.

    A leaf whose path ends with a parameter's path, and which has its shape, is sharded as that
    parameter; so is one with a number for each row or block of it, in dimensions that still divide.
    One that stacks copies of a parameter, as for slices that train apart, has a copy on each slice.
    Anything else (step counts, factored buffers) is replicated. So the state of any optax chain is
    sharded by inference.
    """
    by_path = {
        _names(path): (leaf.shape, sharding)
        for (path, leaf), sharding in zip(
            jax.tree.leaves_with_path(params), jax.tree.leaves(shardings), strict=True
        )
    }
    replicated = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]

    def sharding_of(path: Any, leaf: Any) -> NamedSharding:
        names = _names(path)
        # A parameter's path is at the end of its optimizer state's path; the longest match counts.
        for start in range(len(names)):
            found = by_path.get(names[start:])
            if found and _has_blocks(leaf.shape, of=found[0]):
                return where_divisible(found[1], leaf.shape)
            if found and leaf.shape and _has_blocks(leaf.shape[1:], of=found[0]):
                return where_divisible(_stacked(found[1]), leaf.shape)
        return replicated

    return jax.tree.map_with_path(sharding_of, tree)


def _stacked(sharding: NamedSharding) -> NamedSharding:
    """Return the sharding of a stack, whose first dimension is split over slices."""
    used = jax.tree.leaves(tuple(sharding.spec))
    # An axis splits one dimension only; rules may have split a parameter over slices.
    own = None if "data" in used else "data"
    spec = PartitionSpec(own, *sharding.spec)  # type: ignore[no-untyped-call]
    return NamedSharding(sharding.mesh, spec)


def _has_blocks(shape: tuple[int, ...], *, of: tuple[int, ...]) -> bool:
    return len(shape) == len(of) and all(
        size and whole % size == 0 for size, whole in zip(shape, of, strict=True)
    )


def where_divisible(sharding: NamedSharding, shape: tuple[int, ...]) -> NamedSharding:
    """Return the sharding, with dimensions whole that do not divide over their mesh axes."""
    parts = [
        None if size % _ways(entry, sharding.mesh) else entry
        for size, entry in zip_longest(shape, sharding.spec)  # a spec may leave out the last ones
    ]
    return NamedSharding(sharding.mesh, PartitionSpec(*parts))  # type: ignore[no-untyped-call]


def _ways(entry: Any, mesh: AnyMesh) -> int:
    names = (entry,) if isinstance(entry, str) else entry or ()
    return math.prod(mesh.shape[name] for name in names)


def _names(path: Any) -> tuple[str, ...]:
    return tuple(
        str(getattr(step, "key", getattr(step, "name", getattr(step, "idx", step))))
        for step in path
    )


@attrs.frozen
class ShardedArray:
    """One array of a state on a mesh.

    Args:
        name: Its path.
        shape: Its shape, over all devices.
        split: For each dimension the mesh axes that split it, as `fsdp` or `data x fsdp`; a dash
            where it is whole.
        bytes_per_device: What one device holds of it.
    """

    name: str
    shape: tuple[int, ...]
    split: tuple[str, ...]
    bytes_per_device: int

    @property
    def is_whole(self) -> bool:
        """Whether every device holds all of it."""
        return set(self.split) <= {"-"}


def describe_sharding(specs: Any, shardings: Any) -> list[ShardedArray]:
    """Return how every array that a tree of specs describes is split."""
    is_spec = lambda leaf: isinstance(leaf, ParamSpec)  # noqa: E731
    pairs = zip(jax.tree.leaves(specs, is_leaf=is_spec), jax.tree.leaves(shardings), strict=True)
    return [
        ShardedArray(
            spec.name, spec.shape, _split(sharding.spec), _held(spec.shape, spec.dtype, sharding)
        )
        for spec, sharding in pairs
    ]


def bytes_per_device(tree: Any, shardings: Any) -> int:
    """Return the bytes of a tree of arrays, which may be abstract, that one device holds."""
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(shardings), strict=True)
    return sum(_held(leaf.shape, leaf.dtype, sharding) for leaf, sharding in pairs)


def unused_mesh_axes(shardings: Any, mesh: AnyMesh) -> list[str]:
    """Return the mesh axes of more than one device that none of these shardings splits by.

    Devices along such an axis all do the same work.

    Args:
        shardings: A tree of `NamedSharding`, of parameters and batch.
        mesh: Their mesh.
    """
    specs = [sharding.spec for sharding in jax.tree.leaves(shardings)]
    used = {name for spec in specs for entry in spec for name in _mesh_axes_of(entry)}
    return [name for name, size in mesh.shape.items() if size > 1 and name not in used]


def _held(shape: tuple[int, ...], dtype: Any, sharding: NamedSharding) -> int:
    itemsize: int = jax.numpy.dtype(dtype).itemsize
    return math.prod(sharding.shard_shape(shape)) * itemsize


def _split(spec: PartitionSpec) -> tuple[str, ...]:
    return tuple(" x ".join(_mesh_axes_of(entry)) or "-" for entry in spec)


def _mesh_axes_of(entry: Any) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else tuple(entry or ())
