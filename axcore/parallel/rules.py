"""Logical-axis rules: which mesh axes each named dimension is split over.

Layers name dimensions (`embed`, `mlp`, `heads`), never mesh axes. One table serves parameters and
one activations; a mesh rule may change them.
"""

import math
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

import jax
from immutabledict import immutabledict
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from axcore.config import name_the_known
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
    """Returns how an array with these logical axes is split; axes of size 1 are left out.

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
                hint="change the rules so that one of the two stays whole",
            )
        used.update(names)
        entries.append(names[0] if len(names) == 1 else names or None)
    return PartitionSpec(*entries)  # type: ignore[no-untyped-call]


def _mesh_axes(axis: str, rules: Rules, mesh: AnyMesh, where: str) -> tuple[str, ...]:
    if axis not in rules:
        raise ShardingError(
            f"no rule for the logical axis {axis!r}",
            where=where,
            hint=f"{name_the_known(axis, rules)}; or add rules[{axis!r}] = () to replicate it",
        )
    for name in rules[axis]:
        if name not in mesh.shape:
            raise ShardingError(
                f"the rule for {axis!r} names the mesh axis {name!r}, which does not exist",
                where=where,
                hint=name_the_known(name, mesh.shape),
            )
    return tuple(name for name in rules[axis] if mesh.shape[name] > 1)


def param_shardings(specs: Any, rules: Rules, mesh: AnyMesh) -> Any:
    """Returns a tree of `NamedSharding` for a tree of parameter specs.

    Raises:
        ShardingError: Listing every dimension that does not divide over its mesh axes.
    """
    problems: list[str] = []

    def sharding(spec: ParamSpec) -> NamedSharding:
        parts = partition_spec(spec.axes, rules, mesh, where=spec.name)
        problems.extend(_indivisible(spec, parts, mesh))
        return NamedSharding(mesh, parts)

    shardings = jax.tree.map(sharding, specs, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))
    if problems:
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
    """Returns shardings for an abstract tree that holds copies of `params` somewhere inside.

    A leaf whose path ends with a parameter's path, and which has its shape, is sharded as that
    parameter; so is one with a number for each row or block of it, in dimensions that still divide.
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
        for start in range(len(names)):
            found = by_path.get(names[start:])
            if found and _has_blocks(leaf.shape, of=found[0]):
                return where_divisible(found[1], leaf.shape)
        return replicated

    return jax.tree.map_with_path(sharding_of, tree)


def _has_blocks(shape: tuple[int, ...], *, of: tuple[int, ...]) -> bool:
    return len(shape) == len(of) and all(
        size and whole % size == 0 for size, whole in zip(shape, of, strict=True)
    )


def where_divisible(sharding: NamedSharding, shape: tuple[int, ...]) -> NamedSharding:
    """Returns the sharding, with dimensions whole that do not divide over their mesh axes."""
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
