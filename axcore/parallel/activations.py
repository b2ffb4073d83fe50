"""Activation sharding: hints that layers give by logical axis, at best effort.

The mesh and the rules are carried in a context that jit's cache depends on, so that a step traced
for one mesh is never run on another.
"""

import contextlib
import math
import warnings
from collections.abc import Iterator

import attrs
import jax
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array

from axcore.parallel.rules import ACTIVATION_RULES, Rules, partition_spec


@attrs.frozen
class ActivationSharding:
    """The mesh that activations are split over, and the rules by which they are."""

    mesh: Mesh
    rules: Rules = ACTIVATION_RULES


_active = jax.make_user_context(default_value=None)


@contextlib.contextmanager
def sharding_activations(sharding: ActivationSharding) -> Iterator[None]:
    """Makes `shard` work by this mesh and these rules while code runs or is traced."""
    with _active(sharding):
        yield


def shard(x: Array, *axes: str | None) -> Array:
    """Hints how an activation is split; the array's values do not change.

    Outside of `sharding_activations` it does nothing. A dimension that does not divide over its
    mesh axes stays whole, and a warning says so once.
    """
    active: ActivationSharding | None = _active.value
    if active is None or active.mesh.size == 1:
        return x
    spec = partition_spec(axes, active.rules, active.mesh)
    kept = [
        entry if _divides(size, entry, active.mesh, axis) else None
        for size, entry, axis in zip(x.shape, spec, axes, strict=True)
    ]
    sharding = NamedSharding(active.mesh, jax.sharding.PartitionSpec(*kept))
    return jax.lax.with_sharding_constraint(x, sharding)


def is_split(axis: str) -> bool:
    """Tells whether activations are split along a logical axis where this is traced.

    A layer that would merge that dimension with another asks first: merged, it could not stay
    split.
    """
    active: ActivationSharding | None = _active.value
    if active is None:
        return False
    return any(active.mesh.shape[name] > 1 for name in active.rules.get(axis, ()))


def _divides(size: int, entry: object, mesh: Mesh, axis: str | None) -> bool:
    names = (entry,) if isinstance(entry, str) else entry or ()
    ways = math.prod(mesh.shape[name] for name in names)  # type: ignore[attr-defined]
    if size % ways:
        warnings.warn(
            f"activation axis {axis!r} of size {size} does not divide over {ways} devices and "
            "stays whole",
            stacklevel=3,
        )
        return False
    return True
