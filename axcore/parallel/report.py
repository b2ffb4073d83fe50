"""What a sharding comes to: how arrays are split, what stays whole, which mesh axes do nothing."""

import math
from typing import Any

import attrs
import jax
from jax.sharding import NamedSharding, PartitionSpec

from axcore.module import ParamSpec
from axcore.parallel.rules import AnyMesh


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
    """Returns how every array that a tree of specs describes is split."""
    is_spec = lambda leaf: isinstance(leaf, ParamSpec)  # noqa: E731
    pairs = zip(jax.tree.leaves(specs, is_leaf=is_spec), jax.tree.leaves(shardings), strict=True)
    return [
        ShardedArray(
            spec.name, spec.shape, _split(sharding.spec), _held(spec.shape, spec.dtype, sharding)
        )
        for spec, sharding in pairs
    ]


def bytes_per_device(tree: Any, shardings: Any) -> int:
    """Returns what one device holds of a tree of arrays, which may be abstract."""
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(shardings), strict=True)
    return sum(_held(leaf.shape, leaf.dtype, sharding) for leaf, sharding in pairs)


def unused_mesh_axes(shardings: Any, mesh: AnyMesh) -> list[str]:
    """Returns the mesh axes of more than one device that none of these shardings splits by.

    Devices along such an axis all do the same work.

    Args:
        shardings: A tree of `NamedSharding`, of parameters and batch.
        mesh: Their mesh.
    """
    specs = [sharding.spec for sharding in jax.tree.leaves(shardings)]
    used = {name for spec in specs for entry in spec for name in _names(entry)}
    return [name for name, size in mesh.shape.items() if size > 1 and name not in used]


def _held(shape: tuple[int, ...], dtype: Any, sharding: NamedSharding) -> int:
    itemsize: int = jax.numpy.dtype(dtype).itemsize
    return math.prod(sharding.shard_shape(shape)) * itemsize


def _split(spec: PartitionSpec) -> tuple[str, ...]:
    return tuple(" x ".join(_names(entry)) or "-" for entry in spec)


def _names(entry: Any) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else tuple(entry or ())
