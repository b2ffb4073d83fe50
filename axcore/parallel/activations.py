"""Activation sharding: hints that layers give by logical axis, at best effort.

The mesh and the rules are carried in a context that jit's cache depends on, so that a step traced
for one mesh is never run on another.
"""

import math
import warnings
from contextlib import AbstractContextManager
from typing import Any, Literal, cast

import attrs
import jax
from immutabledict import immutabledict
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from axcore._jax_compat import user_context
from axcore.parallel.rules import ACTIVATION_RULES, PARAM_RULES, AnyMesh, Rules, partition_spec


def _hashable(rules: Rules) -> Rules:
    return immutabledict(rules)


ContextParallelism = Literal["all_gather", "ring", "ulysses"]
"""How attention reaches keys on other devices, where time is split."""


@attrs.frozen
class ActivationSharding:
    """The mesh that activations are split over, the rules by which they are, how attention reaches
    keys on other devices, and the rules by which parameters are stored.

    It also remembers which hints were dropped, so that each is reported once in a run.
    """

    mesh: Mesh
    rules: Rules = attrs.field(default=ACTIVATION_RULES, converter=_hashable)
    context_parallelism: ContextParallelism = "all_gather"
    param_rules: Rules = attrs.field(default=PARAM_RULES, converter=_hashable)
    _warned: set[str] = attrs.field(factory=set, init=False, eq=False, repr=False)

    def warn_once(self, text: str) -> None:
        """Warn, unless it did so before."""
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(text, stacklevel=4)


# No plain global: jit's cache depends on it, so a step traced for one mesh never runs on another.
_active = user_context(None)


def sharding_activations(sharding: ActivationSharding) -> AbstractContextManager[None]:
    """Return a context in which hints and ops follow this mesh and these rules, for tracing."""
    return cast(AbstractContextManager[None], _active(sharding))


def current_rules() -> Rules:
    """Return the rules in force where this is traced; the default ones outside of any."""
    active: ActivationSharding | None = _active.value
    return ACTIVATION_RULES if active is None else active.rules


def param_rules() -> Rules:
    """Return the rules by which parameters are stored; the default ones outside of any."""
    active: ActivationSharding | None = _active.value
    return PARAM_RULES if active is None else active.param_rules


def context_parallelism() -> ContextParallelism | None:
    """Return how attention reaches keys on other devices; None outside of a mesh."""
    active: ActivationSharding | None = _active.value
    return None if active is None else active.context_parallelism


def active_mesh() -> AnyMesh | None:
    """Return the mesh that is worked on where this is traced; None outside of one.

    Inside of a `shard_map` it knows which of its axes are handled by hand.
    """
    abstract = jax.sharding.get_abstract_mesh()
    if not abstract.empty:
        return None if abstract.size == 1 else abstract
    active: ActivationSharding | None = _active.value
    return None if active is None or active.mesh.size == 1 else active.mesh


def manual_axes() -> frozenset[str]:
    """Return the mesh axes that a `shard_map` around this handles by hand."""
    return frozenset(jax.sharding.get_abstract_mesh().manual_axes)


def warn_once(text: str) -> None:
    """Warn, unless this run did so before."""
    active: ActivationSharding | None = _active.value
    if active is None:
        warnings.warn(text, stacklevel=4)
    else:
        active.warn_once(text)


def shard(x: Array, *axes: str | None) -> Array:
    """Hint how an activation is split; the array's values do not change.

    Outside of `sharding_activations` it does nothing. A dimension that does not divide over its
    mesh axes stays whole, and a warning says so once.
    """
    active: ActivationSharding | None = _active.value
    if active is None or active.mesh.size == 1:
        return x
    done = manual_axes()
    mesh = (active_mesh() if done else None) or active.mesh
    spec = [_without(entry, done) for entry in partition_spec(axes, active.rules, mesh)]
    kept = [
        entry if _divides(size, entry, active, axis) else None
        for size, entry, axis in zip(x.shape, spec, axes, strict=True)
    ]
    if done and not any(kept):
        return x
    kept_spec = PartitionSpec(*kept)  # type: ignore[no-untyped-call]
    sharding = NamedSharding(mesh, kept_spec)
    hinted: Array = jax.lax.with_sharding_constraint(x, sharding)  # type: ignore[no-untyped-call]
    return hinted


def _without(entry: Any, done: frozenset[str]) -> Any:
    """Return an entry of a partition without the axes that are handled by hand."""
    names = (entry,) if isinstance(entry, str) else entry or ()
    return tuple(name for name in names if name not in done) or None


def is_sharded(axis: str) -> bool:
    """Return whether activations are split along a logical axis where this is traced.

    A layer that would merge that dimension with another asks first: merged, it could not stay
    split.
    """
    return bool(sharded_mesh_axes(axis))


def sharded_mesh_axes(axis: str) -> tuple[str, ...]:
    """Return the mesh axes over which activations are split along a logical axis; none outside of
    a mesh, and none of those that a `shard_map` around this handles by hand.
    """
    active: ActivationSharding | None = _active.value
    if active is None:
        return ()
    done, shape = manual_axes(), active.mesh.shape
    names = active.rules.get(axis, ())
    return tuple(name for name in names if shape[name] > 1 and name not in done)


def num_shards(axis: str) -> int:
    """Return the product of the sizes of `sharded_mesh_axes`."""
    active: ActivationSharding | None = _active.value
    return 1 if active is None else math.prod(active.mesh.shape[n] for n in sharded_mesh_axes(axis))


def _divides(size: int, entry: object, active: ActivationSharding, axis: str | None) -> bool:
    names = (entry,) if isinstance(entry, str) else entry or ()
    ways = math.prod(active.mesh.shape[name] for name in names)  # type: ignore[attr-defined]
    if size % ways:
        active.warn_once(
            f"activation axis {axis!r} of size {size} does not divide over {ways} devices and "
            "is not split"
        )
        return False
    return True
