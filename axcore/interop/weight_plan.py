"""`WeightPlan`: what each array of a model begins as; a table of it, and the state itself."""

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np

from axcore.config import suggest_names
from axcore.errors import ConfigError
from axcore.interop.array_source import ArraySource, LazyArray, LeafOrigins, Noise, Origin, on_host
from axcore.interop.family import ADAPTER_ARRAYS, TRAINING_ONLY
from axcore.interop.host_arrays import check_host_holds
from axcore.interop.weight_edits import CandidateArrays, ModelPair, WeightEdit, is_at
from axcore.interop.weight_map import Slice, is_any, listed, named_specs, unstacked
from axcore.progress import working


@attrs.frozen
class Selection:
    """Which arrays are read, by globs of paths in the state, or of one layer's.

    Args:
        read: Arrays of the model that are read; others begin randomly initialized.
        fresh: Arrays of the model that are not read.
        unused: Arrays of the source, after all edits, that the model does not have.
    """

    read: tuple[str, ...] = ("**",)
    fresh: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


EVERYTHING = Selection()


@attrs.frozen
class WeightPlan:
    """What each array of a model begins as.

    Args:
        cfg: The model's config.
        source: Contains arrays.
        leaves: Of which arrays of the source each leaf of the state is; those that are left out
            begin randomly initialized.
        stacked: The dimensions that are stacked in each leaf.
    """

    cfg: Any
    source: ArraySource
    leaves: Mapping[str, LeafOrigins]
    stacked: Mapping[str, tuple[int, ...]]

    def read(self, wanted: Any, *, seed: int = 0) -> Any:
        """Return the state.

        Args:
            wanted: A description of it: shapes, dtypes and shardings. Numbers are converted to
                these dtypes; without a sharding, arrays are on the first device.
            seed: Of the arrays that are not read.

        Raises:
            CheckpointError: An array is damaged, or holds NaN or infinity, or the host's memory
                is less than the arrays that devices keep there.
        """
        described = _named(wanted)
        check_host_holds(described.values())
        stacked = self.stacked
        whole = {name for name, one in self.leaves.items() if len(one) == math.prod(stacked[name])}
        lacked = {name: leaf for name, leaf in described.items() if name not in whole}
        found = _fresh(self.cfg, lacked, seed)
        num_bytes = sum(_num_bytes(described[name]) for name in self.leaves)
        with working("reading weights", num_bytes) as work:
            for name, array in self.source.read(self.leaves, described):
                origins = self.leaves[name]
                array = _with_noise(name, array, origins, stacked[name])
                if name not in whole:
                    array = _completed(array, found[name], origins, stacked[name])
                found[name] = array
                work.add(_num_bytes(described[name]))
        state = [found[name] for name in described]
        return jax.tree.unflatten(jax.tree.structure(wanted), state)

    def lazy(self, wanted: Any, *, seed: int = 0) -> Any:
        """Return the state for an engine, which reads one array after another: `LazyArray`s.

        Those with noise or randomly initialized arrays are read at once into the host's memory.

        Args:
            wanted: As for `read`; its shardings say where an engine is that is given no mesh.
            seed: As for `read`.

        Raises:
            CheckpointError: As `read`, of what is read at once.
        """
        described, stacked = _named(wanted), self.stacked
        found: dict[str, Any] = {
            name: self._lazy(name, described[name], stacked[name])
            for name, origins in self.leaves.items()
            if len(origins) == math.prod(stacked[name])
            and not any(one.noise for one in origins.values())
        }
        rest = {name: on_host(leaf) for name, leaf in described.items() if name not in found}
        leaves = {name: origins for name, origins in self.leaves.items() if name in rest}
        read = attrs.evolve(self, leaves=leaves).read(rest, seed=seed)
        found |= jax.tree.map(np.asarray, read)
        return jax.tree.unflatten(jax.tree.structure(wanted), [found[name] for name in described])

    def _lazy(self, name: str, wanted: Any, stacked: tuple[int, ...]) -> LazyArray:
        origins = tuple(self.leaves[name][index] for index in np.ndindex(*stacked))
        return LazyArray(name, self.source, origins, stacked, wanted.dtype, wanted.sharding)

    def table(self) -> str:
        """Return a line for each array of the state: its name, and what it begins as."""
        stacked = self.stacked
        width = max(map(len, stacked))
        return "\n".join(
            f"{name:{width}}  {self._line(self.leaves.get(name, {}), math.prod(shape))}"
            for name, shape in stacked.items()
        )

    def _line(self, origins: LeafOrigins, num_places: int) -> str:
        if not origins:
            return "randomly initialized"
        sources = list(dict.fromkeys(one.source for one in origins.values()))
        notes = [self.source.described(sources)]
        if len(sources) < len(origins):
            notes.append(f"in {len(origins)} places")
        notes += dict.fromkeys(str(change) for one in origins.values() for change in one.changes)
        noise = next((one.noise for one in origins.values() if one.noise), None)
        if noise is not None:
            notes.append(f"with noise of {noise.scale:g}, seed {noise.seed}")
        if len(origins) < num_places:
            notes.append(f"{num_places - len(origins)} of {num_places} randomly initialized")
        return ", ".join(notes)


def plan_weights(
    models: tuple[Any, Any],
    source: ArraySource,
    *,
    selection: Selection = EVERYTHING,
    edits: Sequence[WeightEdit] = (),
    specs: Any = None,
) -> WeightPlan:
    """Return what a model begins with; read no numbers.

    Args:
        models: The config of the source's model, and of the one that begins.
        source: Contains arrays.
        selection: Which of them are read.
        edits: What is done to them, in order.
        specs: The `param_specs()` of the model that begins, where they are made already.

    Raises:
        CheckpointError: Naming every array that cannot be read.
        ConfigError: Naming every array that has no source, or is of another shape, and every one
            of the source that nothing begins with; or an edit or a glob has nothing to do.
    """
    source_cfg, target_cfg = models
    named = dict(named_specs(target_cfg.build().param_specs() if specs is None else specs))
    places = unstacked(named)
    shapes = {name: named[one.leaf].shape[len(one.index) :] for name, one in places.items()}
    candidates = CandidateArrays(
        {name: Origin(name, shape) for name, shape in source.shapes.items()}
    )
    for edit in edits:
        candidates = edit.edited(candidates, ModelPair(source_cfg, target_cfg, shapes))
    wanted = _selected(places, candidates, selection)
    _check_fit({name: shapes[name] for name in wanted}, places.keys(), candidates, selection)
    source.check(dict.fromkeys(candidates.arrays[name].source for name in wanted))
    leaves: dict[str, dict[tuple[int, ...], Origin]] = {}
    for name in wanted:
        leaves.setdefault(places[name].leaf, {})[places[name].index] = candidates.arrays[name]
    stacked = {name: spec.shape[: spec.num_stacked] for name, spec in named.items()}
    return WeightPlan(target_cfg, source, leaves, stacked)


def _selected(
    places: Mapping[str, Slice], candidates: CandidateArrays, selection: Selection
) -> list[str]:
    """Return the names of the arrays that are read."""
    read = _matched(selection.read, places, "read")
    fresh = _matched(selection.fresh, places, "fresh") | candidates.fresh
    own = (*TRAINING_ONLY, *ADAPTER_ARRAYS)
    return [
        name
        for name in places
        if name in read
        and name not in fresh
        and (name in candidates.arrays or not is_any(own, name))
    ]


def _matched(globs: Sequence[str], places: Mapping[str, Slice], field: str) -> set[str]:
    if globs == EVERYTHING.read:  # no need to match thousands of arrays
        return set(places)
    found: set[str] = set()
    for glob in globs:
        here = {n for n, one in places.items() if is_at(glob, n) or is_at(glob, one.leaf)}
        if not here:
            raise ConfigError(
                f"{glob!r} matches no array of the model that would be read",
                where=f"init_from.{field}",
                hint=f"name arrays by their paths in the state, as {next(iter(places))}",
            )
        found |= here
    return found


def _check_fit(
    wanted: Mapping[str, tuple[int, ...]],
    known: Any,
    candidates: CandidateArrays,
    selection: Selection,
) -> None:
    """Check that every array that is read has an origin of its shape, and no origin is left."""
    missing = [name for name in wanted if name not in candidates.arrays]
    left = [name for name in candidates.arrays if name not in known]
    for glob in selection.unused:
        named = {name for name in left if is_at(glob, name)}
        if not named:
            raise ConfigError(
                f"{glob!r} matches no array of the source that the model lacks",
                where="init_from.unused",
                hint=suggest_names(glob, left),
            )
        left = [name for name in left if name not in named]
    left = [name for name in left if not is_any(TRAINING_ONLY, name)]
    problems = [
        f"{name} has shape {list(wanted[name])}; {_source(candidates, name)} has "
        f"{list(candidates.arrays[name].shape)}"
        for name in wanted
        if name in candidates.arrays and candidates.arrays[name].shape != wanted[name]
    ]
    problems += [f"{name} of the model is not in the source" for name in missing]
    problems += [
        f"{_source(candidates, name)} is in the source; nothing here has it" for name in left
    ]
    if problems:
        raise ConfigError(
            f"{len(problems)} arrays of the source and the model are incompatible:\n"
            + listed(problems),
            where="init_from",
            hint="name arrays to initialize randomly in init_from.fresh, those of the source that "
            "are not wanted in init_from.unused, or add edits",
        )


def _source(candidates: CandidateArrays, name: str) -> str:
    source = candidates.arrays[name].source
    return name if source == name else f"{source} (as {name})"


def _with_noise(
    name: str, array: jax.Array, origins: LeafOrigins, stacked: tuple[int, ...]
) -> jax.Array:
    """Return a leaf with the noise of its arrays, the same on any number of devices."""
    noise: Noise | None = next((one.noise for one in origins.values() if one.noise), None)
    if noise is None:
        return array
    has_noise = _mask(stacked, [index for index, one in origins.items() if one.noise], array.ndim)
    # crc32, not hash(): Python's differs from process to process, and hosts must agree.
    key = jax.random.fold_in(jax.random.key(noise.seed), zlib.crc32(name.encode()))

    # Donated: a leaf may contain all layers of a matrix, and two of it may not fit.
    @partial(jax.jit, donate_argnums=0, out_shardings=array.sharding)
    def noisy(array: jax.Array) -> jax.Array:
        numbers = array.astype(jnp.float32)
        axes = tuple(range(len(stacked), array.ndim))
        size = jnp.sqrt(jnp.mean(jnp.square(numbers), axis=axes, keepdims=True))
        drawn = jax.random.normal(key, array.shape, jnp.float32)
        return (numbers + has_noise * noise.scale * size * drawn).astype(array.dtype)

    made: jax.Array = noisy(array)
    return made


def _completed(
    array: jax.Array, fresh: jax.Array, origins: LeafOrigins, stacked: tuple[int, ...]
) -> jax.Array:
    """Return a leaf with arrays randomly initialized where it has no origins."""
    is_read = _mask(stacked, list(origins), array.ndim) > 0

    @partial(jax.jit, donate_argnums=0, out_shardings=array.sharding)
    def chosen(array: jax.Array, fresh: jax.Array) -> jax.Array:
        return jnp.where(is_read, array, fresh)

    made: jax.Array = chosen(array, fresh)
    return made


def _mask(stacked: tuple[int, ...], indices: Sequence[tuple[int, ...]], ndim: int) -> np.ndarray:
    """Return one at these places of the stacked dimensions, zero elsewhere, to be broadcast."""
    mask = np.zeros(stacked, np.float32)
    for index in indices:
        mask[index] = 1.0
    return mask.reshape(*stacked, *[1] * (ndim - len(stacked)))


def _num_bytes(leaf: Any) -> int:
    return int(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize)


def _fresh(cfg: Any, wanted: Mapping[str, Any], seed: int) -> dict[str, jax.Array]:
    """Return initial values of some leaves; make no other."""

    # One program, of which XLA removes the leaves that are not returned: they take no memory.
    def chosen() -> dict[str, jax.Array]:
        state = _named(cfg.build().init(seed))
        return {name: state[name].astype(leaf.dtype) for name, leaf in wanted.items()}

    shardings = {name: leaf.sharding for name, leaf in wanted.items()}
    made: dict[str, jax.Array] = jax.jit(chosen, out_shardings=shardings)() if wanted else {}
    return made


def _named(tree: Any) -> dict[str, Any]:
    """Return the leaves of a state by name, in their order."""
    return dict(_pairs(tree))


def _pairs(tree: Any) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield jax.tree_util.keystr(path, simple=True, separator="."), leaf
