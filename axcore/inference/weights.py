"""`WeightConversion`: from the state of a model as it is trained to what programs read of it."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, Sharding, SingleDeviceSharding
from jaxtyping import Array

from axcore.config import suggest_names
from axcore.errors import ConfigError, EngineError
from axcore.inference.adapters import AdapterFactors
from axcore.interop.array_source import read_leaf
from axcore.interop.host_arrays import check_host_holds
from axcore.layers import with_adapter
from axcore.layers.quantization.stored_weights import kept_weight
from axcore.module import ParamSpec, Path, restacked_arrays
from axcore.parallel import (
    PARAM_RULES,
    param_shardings,
    partition_spec,
    put_everywhere,
    where_divisible,
)
from axcore.progress import working

Names = tuple[str, ...]

_Target = tuple[ParamSpec, Names, Any]
"""Spec of an array that was trained, its path in the model that serves, and its layer there."""


class WeightConversion:
    """Converts a state array by array, so that it needs memory for the result and one more array.

    An `LazyArray` is read when it is needed, and no more of it than makes one array.

    Each array is cast to what its layer reads, and so holds the numbers that the layer computes
    with; what a layer keeps quantized is quantized from the numbers that were trained.

    Args:
        trained: Specs of the state, as the model is trained.
        kept: Specs of the same arrays in the model that serves, but for changes of its layers.
        served: Specs of the weights of the model that serves, of the types that its layers read.
        mesh: Where they are; None for the device that jax takes itself.

    Raises:
        ShardingError: They do not divide over the mesh.
    """

    def __init__(self, trained: Any, kept: Any, served: Any, mesh: Mesh | None) -> None:
        self._trained, self._served, self._mesh = trained, served, mesh
        self._targets = list(_targets(served, kept))
        if mesh is not None:
            # Raises here, before memory is taken, where the mesh does not divide the weights.
            param_shardings(kept, PARAM_RULES, mesh)

    @property
    def abstract(self) -> Any:
        """Shape, type and place of each of the weights."""

        def of_spec(spec: ParamSpec) -> Any:
            return spec.abstract.update(sharding=self._place(spec))  # type: ignore[no-untyped-call]

        return jax.tree.map(of_spec, self._served, is_leaf=_is_spec)

    @property
    def replacement_bytes(self) -> int:
        """Memory that a device needs, apart from old and new weights, while arrays are replaced.

        That is the largest array, and the same as it was trained where it is quantized.
        """
        return max(
            sum(self._device_bytes(one) for one in self._at_once(spec, path[-1], layer))
            for spec, path, layer in self._targets
        )

    def check(self, state: Any, *, is_partial: bool = False) -> None:
        """Check that arrays are those of a state of the model.

        Args:
            state: Its arrays.
            is_partial: Whether branches and arrays of it may be missing.

        Raises:
            ConfigError: They are of another model, or differ in type.
            ModuleError: One has another shape.
        """
        trained = _part_of(self._trained, state) if is_partial else self._trained
        given: Any = jax.tree.structure(state)
        wanted: Any = jax.tree.structure(trained)
        if given != wanted:
            raise ConfigError(
                f"the arrays are not those of the model: {given.num_leaves} in other places than "
                f"its {wanted.num_leaves}",
                hint="give a state of the same model",
            )
        # By type, since a silent cast of a state in other precision would change the model.
        for leaf, spec in zip(jax.tree.leaves(state), _leaves(trained), strict=True):
            if leaf.dtype != spec.dtype:
                raise ConfigError(
                    f"the arrays differ in type from those of the model: {spec.name} is "
                    f"{leaf.dtype}, not {spec.dtype}",
                    hint="give a state of the same model",
                )
        # For its checks of shapes; nothing is read, as it is an iterator that nobody asks.
        self._restacked(state, trained, self._targets_of(trained))

    @property
    def paths(self) -> Iterator[Names]:
        """The paths of all weights that a state decides."""
        for _, kept in self._kept_paths:
            yield from kept

    def sources(self, weights: Any) -> set[Path]:
        """Return what a state has to have again, by `ParamSpec.rng_paths`: its weights are gone."""
        return {
            source
            for spec, kept in self._kept_paths
            if not all(is_present(_leaf(weights, path)) for path in kept)
            for source in spec.rng_paths()
        }

    @cached_property
    def _kept_paths(self) -> list[tuple[ParamSpec, list[Names]]]:
        """The paths of the weights that are made of each array; found by tracing, so once."""
        return [
            (spec, [(*path[:-1], name) for name in self._kept_names(spec, path[-1], layer)])
            for spec, path, layer in self._targets
        ]

    def arrays(self, state: Any, *, is_partial: bool = False) -> Iterator[tuple[Names, Array]]:
        """Yield the weights that a state decides, each with its path, where they are to be stored.

        An array that is stored there already, of the type that its layer reads, is not copied.

        Args:
            state: Arrays of the model.
            is_partial: Whether it has some of them only, which decide some of the weights.

        Raises:
            ModuleError: An array is missing, or has another shape.
            CheckpointError: One that is not read yet is damaged, or holds what is not a number.
        """
        for path, array in self.traced_arrays(state, is_partial=is_partial):
            # Waited for, or the runtime would run ahead
            # and hold many arrays on their way at once.
            yield path, array.block_until_ready()

    def traced_arrays(
        self, state: Any, *, is_partial: bool = False
    ) -> Iterator[tuple[Names, Array]]:
        """Yield what `arrays` does and wait for none, so that a program can do the same."""
        trained = _part_of(self._trained, state) if is_partial else self._trained
        targets = self._targets_of(trained)
        found = self._restacked(state, trained, targets)
        for spec, path, layer in targets:  # no zip: it would hold an array and the next one
            for name, array in self._made(next(found), spec, path[-1], layer).items():
                yield (*path[:-1], name), array

    def whole(self, state: Any) -> Any:
        """Return the weights; those that no state decides, of adapters, are zero.

        Raises:
            ModuleError: As `arrays`.
            CheckpointError: As `arrays`, or the host's memory is less than the weights that devices
                keep there.
        """
        wanted = jax.tree.leaves(self.abstract)
        # Before the first is placed: the kernel kills a
        # process that runs out of memory, and says nothing.
        check_host_holds(wanted)
        known: dict[Names, Array] = {}
        num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in wanted)
        with working("placing weights", num_bytes) as work:
            for path, array in self.arrays(state):
                known[path] = array
                work.add(array.nbytes)

        def taken(path: Any, spec: ParamSpec) -> Array:
            array = known.get(tuple(step.key for step in path))
            return self._placed(jnp.zeros(spec.shape, spec.dtype), spec) if array is None else array

        return jax.tree_util.tree_map_with_path(taken, self._served, is_leaf=_is_spec)

    def _targets_of(self, trained: Any) -> list[_Target]:
        """Return what a state with the arrays of some specs decides.

        Raises:
            ConfigError: It has a part only of what makes one array.
        """
        known = {path for spec in _leaves(trained) for path in spec.rng_paths()}
        found = []
        for target in self._targets:
            given = [path in known for path in target[0].rng_paths()]
            if any(given) and not all(given):
                raise ConfigError(
                    f"{target[0].name} is of {len(given)} layers, and there are arrays of "
                    f"{sum(given)}",
                    hint="give the arrays of all layers, or of none",
                )
            if all(given):
                found.append(target)
        return found

    def _restacked(self, state: Any, trained: Any, targets: list[_Target]) -> Iterator[Array]:
        found = restacked_arrays(state, trained, [spec for spec, _, _ in targets])
        return map(read_leaf, found)

    def _made(self, leaf: Any, spec: ParamSpec, name: str, layer: Any) -> dict[str, Array]:
        """Return what a layer keeps of an array, where it is to be stored."""
        if name in layer:
            # Cast on the side where it comes from, so that half as many bytes are moved.
            return {name: self._placed(_cast(leaf, layer[name].dtype), layer[name])}
        # Placed before it is quantized, so that the devices do that, each its own part.
        kept = kept_weight(layer, self._placed(leaf, spec))
        return {name: self._placed(array, layer[name]) for name, array in kept.items()}

    def _at_once(self, spec: ParamSpec, name: str, layer: Any) -> list[ParamSpec]:
        """Return what is on devices while an array takes the place of an old one."""
        kept = [layer[one] for one in self._kept_names(spec, name, layer)]
        return kept if name in layer else [spec, *kept]

    def _kept_names(self, spec: ParamSpec, name: str, layer: Any) -> list[str]:
        """Return the names of what a layer keeps of an array."""
        if name in layer:
            return [name]
        return list(jax.eval_shape(lambda weight: kept_weight(layer, weight), spec.abstract))

    def _placed(self, leaf: Any, spec: ParamSpec) -> Array:
        array: Array = put_everywhere(leaf, self._place(spec))
        return array

    def _place(self, spec: ParamSpec) -> Sharding:
        if self._mesh is None:
            return SingleDeviceSharding(default_device())
        parts = partition_spec(spec.axes, PARAM_RULES, self._mesh, where=spec.name)
        # Where a dimension does not divide, the array is whole on each
        # device rather than refused: small ones are of no weight.
        return where_divisible(NamedSharding(self._mesh, parts), spec.shape)

    def _device_bytes(self, spec: ParamSpec) -> int:
        shape = self._place(spec).shard_shape(spec.shape)
        return math.prod(shape) * jnp.dtype(spec.dtype).itemsize


def _part_of(specs: Any, state: Any, path: Names = ()) -> Any:
    """Return the specs of the arrays of a state that has some of them.

    Raises:
        ConfigError: It has others.
    """
    if _is_spec(specs) or not isinstance(state, Mapping):
        return specs
    for name in state:
        if name not in specs:
            raise ConfigError(
                f"the model has no array {'.'.join((*path, str(name)))!r}",
                hint=suggest_names(str(name), specs),
            )
    return {name: _part_of(specs[name], below, (*path, name)) for name, below in state.items()}


def _targets(specs: Any, kept: Any, path: Names = ()) -> Iterator[tuple[ParamSpec, Names, Any]]:
    """Yield the spec of each array that was trained, its path in the model that serves, and the
    specs of its layer there: without it where that keeps it in another form."""
    for name, below in kept.items():
        if _is_spec(below):
            yield below, (*path, name), specs
        else:
            yield from _targets(specs[name], below, (*path, name))


def _cast(leaf: Any, dtype: str) -> Any:
    return leaf if leaf.dtype == dtype else leaf.astype(jnp.dtype(dtype))


def default_device() -> Any:
    """Return the device that jax takes itself where no mesh is set."""
    # Not by making an array: in a run that would be on all devices of its mesh.
    device = jax.config.jax_default_device  # type: ignore[attr-defined]
    return device if isinstance(device, jax.Device) else jax.local_devices(backend=device)[0]


def _is_spec(node: Any) -> bool:
    return isinstance(node, ParamSpec)


def _leaves(specs: Any) -> list[ParamSpec]:
    return jax.tree.leaves(specs, is_leaf=_is_spec)


class ServedWeights:
    """Weights that can be changed between two calls; not for several threads, but for `check`.

    Args:
        weights: The first ones.
        conversion: What makes them of a state.

    Attributes:
        value: What the model is called with.
    """

    def __init__(self, weights: Any, conversion: WeightConversion) -> None:
        self.value = weights
        self._conversion = conversion

    @property
    def device_bytes(self) -> int:
        """What they take on a device."""
        return sum(
            math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
            for leaf in jax.tree.leaves(self.value)
        )

    def check(self, state: Any, *, is_partial: bool = False) -> None:
        """Check that another state is of the model, or a part of one.

        Raises:
            ConfigError: Its arrays are of another model, or differ in type.
            ModuleError: One has another shape.
        """
        self._conversion.check(state, is_partial=is_partial)

    def check_present(self) -> None:
        """Check that no array was released, or donated to another program by whoever shares it.

        Raises:
            EngineError: One was.
        """
        leaves = jax.tree.leaves(self.value)
        missing = sum(not is_present(one) for one in leaves)
        if missing:
            raise EngineError(
                f"{missing} of {len(leaves)} arrays of the engine's weights were released, or "
                "deleted by a program that they were donated to",
                hint="call replace_weights with the new state first",
            )

    def release(self) -> None:
        """Drop the arrays that a state decides, until `replace`; adapters and a draft stay."""
        shapes = abstract(self.value)
        for path in self._conversion.paths:
            self.value = _with_leaf(self.value, path, _leaf(shapes, path))

    def replace(self, state: Any, *, is_partial: bool = False) -> None:
        """Take over a state that was checked; adapters and a draft stay.

        Each array takes the place of the one before it, which is freed if nobody else holds it: so
        there is memory for one array more, and not for all of them twice.

        Raises:
            EngineError: An array could not be converted, after others were.
        """
        try:
            for path, array in self._conversion.arrays(state, is_partial=is_partial):
                # The old array is let go with this assignment, before the next one is read.
                self.value = _with_leaf(self.value, path, array)
        # Whatever it was, old and new weights are mixed now, and no
        # answer of them means anything. An EngineError ends the engine.
        except Exception as error:
            raise EngineError(
                f"new weights were taken over in part, and then failed: {error}",
                hint="start the engine again",
            ) from error

    def missing_part(self, state: Any, specs: Any) -> Any:
        """Return the arrays of a state that these weights need, as a tree without the others.

        That is what is not frozen, and of the frozen arrays those that were shared with a program
        which has taken their memory since.

        Args:
            state: The state.
            specs: Its specs; those that are frozen have the numbers that were handed over before.
        """
        gone = self._conversion.sources(self.value)

        def is_needed(spec: ParamSpec) -> bool:
            return not spec.is_frozen or any(path in gone for path in spec.rng_paths())

        return _pruned(state, specs, is_needed)

    def set_adapter(self, number: int, factors: AdapterFactors | None) -> None:
        """Take over the factors of an adapter, by the paths of layers; None takes it out.

        Raises:
            ModuleError: The model has no such layer, or no room for its rank.
        """
        weights = with_adapter(self.value, number, factors)
        places = jax.tree.map(lambda leaf: leaf.sharding, self.value)
        # Placed as before: a sharding that differs would not fit the compiled programs.
        self.value = put_everywhere(weights, places)


def _with_leaf(tree: Any, path: Names, leaf: Array) -> Any:
    if not path:
        return leaf
    return {**tree, path[0]: _with_leaf(tree[path[0]], path[1:], leaf)}


def _pruned(tree: Any, specs: Any, is_wanted: Callable[[ParamSpec], bool]) -> Any:
    """Return a tree of dicts with the leaves whose specs are wanted, and without empty dicts."""
    if _is_spec(specs):
        return tree if is_wanted(specs) else {}
    below = {name: _pruned(tree[name], spec, is_wanted) for name, spec in specs.items()}
    return {name: one for name, one in below.items() if not (isinstance(one, dict) and not one)}


def _leaf(tree: Any, path: Names) -> Any:
    return _leaf(tree[path[0]], path[1:]) if path else tree


def is_present(leaf: Any) -> bool:
    """Return whether an array is there: neither released nor donated to a program."""
    return isinstance(leaf, jax.Array) and not leaf.is_deleted()


def abstract(tree: Any) -> Any:
    """Return shape, type and place of each array."""

    def of_leaf(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)  # type: ignore[no-untyped-call]

    return jax.tree.map(of_leaf, tree)
