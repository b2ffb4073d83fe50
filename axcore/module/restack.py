"""`restacked`: a state laid out for the same modules, with other copies of them stacked."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from axcore.errors import ModuleError
from axcore.module.param import ParamSpec
from axcore.module.rng import Path, format_path


@attrs.frozen
class _Place:
    """Where a copy's array is: which leaf, and which of its copies."""

    leaf: Array
    spec: ParamSpec
    number: int


def restacked(state: Any, specs: Any, wanted: Any) -> dict[str, Any]:
    """Return the state of a model whose copies of layers are stacked in another way.

    Layers that one model scans and another unrolls have the same paths, those of which keys are
    folded, so every array of one has its place in the other.

    Args:
        state: Of the one model.
        specs: Its `param_specs()`.
        wanted: The specs of the other's state, or of a part of it.

    Raises:
        ModuleError: The state lacks an array that is wanted, or has it in another shape.
    """
    leaves, structure = jax.tree.flatten(wanted, is_leaf=_is_spec)
    return jax.tree.unflatten(structure, restacked_arrays(state, specs, leaves))  # type: ignore[no-any-return]


def restacked_arrays(state: Any, specs: Any, wanted: Sequence[ParamSpec]) -> Iterator[Array]:
    """Return what makes the arrays of `restacked` one after the other, as they are asked for.

    Those of a state in host memory, numpy's, stay there.

    Raises:
        ModuleError: As `restacked`, before the first is made.
    """
    # Everything is found before anything is made, so
    # that a state of another model is refused at once.
    places = _places(state, specs)
    found = [_found(spec, places) for spec in wanted]
    return (_taken(spec, of_spec) for spec, of_spec in zip(wanted, found, strict=True))


def _is_spec(node: Any) -> bool:
    return isinstance(node, ParamSpec)


def _places(state: Any, specs: Any) -> dict[Path, _Place]:
    places: dict[Path, _Place] = {}

    def put(spec: ParamSpec, leaf: Array) -> None:
        if leaf.shape != spec.shape:
            raise ModuleError(
                f"the array has shape {list(leaf.shape)}; expected {list(spec.shape)}",
                where=spec.name,
            )
        # By the path of each copy, with its number, as if it
        # were unrolled; that is the form that all layouts share.
        for number, path in enumerate(spec.rng_paths()):
            places[path] = _Place(leaf, spec, number)

    jax.tree.map(put, specs, state, is_leaf=_is_spec)
    return places


def _found(spec: ParamSpec, places: dict[Path, _Place]) -> list[_Place]:
    own = spec.shape[spec.num_stacked :]
    return [_found_copy(path, own, places) for path in spec.rng_paths()]


def _taken(spec: ParamSpec, found: list[_Place]) -> Array:
    """Return an array that is wanted, put together from runs of copies of the arrays there are."""
    own = spec.shape[spec.num_stacked :]
    # The very array: nothing is copied where both models stack alike.
    if spec.shape == found[0].leaf.shape and all(place.leaf is found[0].leaf for place in found):
        return found[0].leaf
    # Runs of neighbours are taken as one slice; a slice for each copy would be many small copies.
    steps = itertools.groupby(
        enumerate(found), key=lambda at: (id(at[1].leaf), at[1].number - at[0])
    )
    runs = [[place for _, place in run] for _, run in steps]
    pieces = [
        run[0].leaf.reshape(-1, *own)[run[0].number : run[0].number + len(run)] for run in runs
    ]
    if len(pieces) == 1:
        return pieces[0].reshape(spec.shape)
    # numpy for arrays of numpy: jnp would move them to
    # a device, which has no room for a second state.
    is_on_host = all(isinstance(piece, np.ndarray) for piece in pieces)
    whole: Array = (np if is_on_host else jnp).concatenate(pieces)
    return whole.reshape(spec.shape)


def _found_copy(path: Path, own: tuple[int, ...], places: dict[Path, _Place]) -> _Place:
    place = places.get(path)
    if place is None:
        raise ModuleError("the state has no such array", where=format_path(path))
    theirs = place.spec.shape[place.spec.num_stacked :]
    if own != theirs:
        raise ModuleError(
            f"the state has an array of shape {theirs}; expected {own}", where=format_path(path)
        )
    return place
