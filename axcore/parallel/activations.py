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
from immutabledict import immutabledict
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from axcore.parallel.rules import ACTIVATION_RULES, Rules, partition_spec


def _hashable(rules: Rules) -> Rules:
    return immutabledict(rules)


@attrs.frozen
class ActivationSharding:
    """The mesh that activations are split over, and the rules by which they are.

    It also remembers which hints were dropped, so that each is told of once in a run.
    """

    mesh: Mesh
    rules: Rules = attrs.field(default=ACTIVATION_RULES, converter=_hashable)
    _told: set[str] = attrs.field(factory=set, init=False, eq=False, repr=False)

    def tell_once(self, text: str) -> None:
        """Warns, unless it did so before."""
        if text not in self._told:
            self._told.add(text)
            warnings.warn(text, stacklevel=4)


_active = jax.make_user_context(default_value=None)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def sharding_activations(sharding: ActivationSharding) -> Iterator[None]:
    """Makes `shard` work by this mesh and these rules while code runs or is traced."""
    with _active(sharding):
        yield


def current_rules() -> Rules:
    """Returns the rules in force where this is traced; the default ones outside of any."""
    active: ActivationSharding | None = _active.value
    return ACTIVATION_RULES if active is None else active.rules


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
        entry if _divides(size, entry, active, axis) else None
        for size, entry, axis in zip(x.shape, spec, axes, strict=True)
    ]
    kept_spec = PartitionSpec(*kept)  # type: ignore[no-untyped-call]
    sharding = NamedSharding(active.mesh, kept_spec)
    hinted: Array = jax.lax.with_sharding_constraint(x, sharding)  # type: ignore[no-untyped-call]
    return hinted


def is_split(axis: str) -> bool:
    """Tells whether activations are split along a logical axis where this is traced.

    A layer that would merge that dimension with another asks first: merged, it could not stay
    split.
    """
    active: ActivationSharding | None = _active.value
    if active is None:
        return False
    return any(active.mesh.shape[name] > 1 for name in active.rules.get(axis, ()))


def _divides(size: int, entry: object, active: ActivationSharding, axis: str | None) -> bool:
    names = (entry,) if isinstance(entry, str) else entry or ()
    ways = math.prod(active.mesh.shape[name] for name in names)  # type: ignore[attr-defined]
    if size % ways:
        active.tell_once(
            f"activation axis {axis!r} of size {size} does not divide over {ways} devices and "
            "stays whole"
        )
        return False
    return True
