"""Reading published weights into a state: slice by slice, into arrays sharded from the start."""

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from axcore.errors import CheckpointError
from axcore.interop.family import CORRECTIONS, TRAINING_ONLY, Family
from axcore.interop.tensor_files import TensorPlace, find_tensors
from axcore.interop.weight_map import BoundMap, Slice, listed

_CHECKED_AT_ONCE = 1 << 20


def read_weights(folder: Path, family: Family, cfg: Any, wanted: Any, *, seed: int = 0) -> Any:
    """Returns the state of a model, read from a folder.

    Args:
        folder: Holds a published model.
        family: The model's family.
        cfg: The model's config.
        wanted: A description of the state: shapes, dtypes and shardings. Numbers are converted to
            these dtypes; without a sharding, arrays are on the first device.
        seed: Of the arrays that published models lack: adapters, what training measures.

    Raises:
        CheckpointError: Naming every tensor that is missing, unknown, of another shape, or holds a
            number that is not finite.
    """
    bound = family.bind(cfg, ignored=(*TRAINING_ONLY, *CORRECTIONS))
    tensors = published_tensors(folder, family)
    for copy, original in family.copies.items():
        if copy not in bound.shapes and copy in tensors and original in tensors:
            _check_same(tensors.pop(copy), tensors[original], copy, original)
    _check_fit(bound, tensors, folder)
    reader = _Reader(bound, tensors)
    described = _named(wanted)
    fresh = _fresh(cfg, {n: leaf for n, leaf in described.items() if n not in bound.specs}, seed)
    read = [fresh[n] if n in fresh else reader.leaf(n, leaf) for n, leaf in described.items()]
    if reader.not_finite:
        raise CheckpointError(
            f"{len(reader.not_finite)} tensors hold numbers that are nan or infinite, or become so "
            "in the dtype that is wanted:\n" + listed(sorted(reader.not_finite)),
            where=str(folder),
            hint="fetch the files again, or ask for a dtype that holds larger numbers",
        )
    return jax.tree.unflatten(jax.tree.structure(wanted), read)


def published_tensors(folder: Path, family: Family) -> dict[str, TensorPlace]:
    """Returns the places of a folder's tensors that hold numbers of the model, by full name.

    Raises:
        CheckpointError: A file is missing, truncated or damaged, or a tensor is in two files.
    """
    found = find_tensors(folder)
    if not any(name.startswith(family.prefix) for name in found):
        found = {n if n in family.copies else family.prefix + n: t for n, t in found.items()}
    skipped = [re.compile(pattern) for pattern in family.skipped]
    return {n: t for n, t in found.items() if not any(one.search(n) for one in skipped)}


def _check_same(copy: TensorPlace, original: TensorPlace, name: str, repeats: str) -> None:
    """Checks that a tensor repeats another one, bit by bit."""
    if copy.shape != original.shape or not _are_same(copy.read(), original.read()):
        raise CheckpointError(
            f"{name} is not {repeats}, which config.json says serves for both",
            where=str(copy.file),
            hint="set tie_word_embeddings to false in config.json if the model has a head",
        )


def _are_same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and all(
        x.tobytes() == y.tobytes() for x, y in zip(_parts(a), _parts(b), strict=True)
    )


def _check_fit(bound: BoundMap, tensors: Mapping[str, TensorPlace], folder: Path) -> None:
    shapes = bound.shapes
    problems = [
        f"{name} has shape {list(tensors[name].shape)}; the model's has {list(shape)}"
        for name, shape in shapes.items()
        if name in tensors and tensors[name].shape != shape
    ]
    problems += [f"{name} is missing" for name in shapes if name not in tensors]
    problems += [f"{name} is not of this model" for name in tensors if name not in shapes]
    if problems:
        raise CheckpointError(
            f"{len(problems)} tensors do not fit the model that config.json describes:\n"
            + listed(problems),
            where=str(folder),
        )


class _Reader:
    """Reads leaves of a state; keeps the names of tensors that hold what is no number."""

    def __init__(self, bound: BoundMap, tensors: Mapping[str, TensorPlace]) -> None:
        self.bound = bound
        self.tensors = tensors
        self.not_finite: set[str] = set()

    def leaf(self, name: str, wanted: Any) -> jax.Array:
        """Returns a leaf; each device's part is read by itself."""
        sharding = wanted.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        parts: dict[str, np.ndarray] = {}

        def part(index: Any) -> np.ndarray:
            ranges = [one.indices(size)[:2] for one, size in zip(index, wanted.shape, strict=True)]
            if str(ranges) not in parts:
                parts.clear()  # replicas come one after the other
                parts[str(ranges)] = self._part(name, ranges, np.dtype(wanted.dtype))
            return parts[str(ranges)]

        array: jax.Array = jax.make_array_from_callback(wanted.shape, sharding, part)
        return array

    def _part(self, leaf: str, ranges: list[tuple[int, int]], dtype: Any) -> np.ndarray:
        """Returns a part of a leaf, as ranges of its dimensions."""
        whole = np.empty([end - begin for begin, end in ranges], dtype)
        for one in _slices(self.bound, leaf, ranges):
            stacked = len(one.index)
            place = tuple(i - begin for i, (begin, _) in zip(one.index, ranges, strict=False))
            within = tuple(slice(*ends) for ends in ranges[stacked:])
            with np.errstate(over="ignore"):  # looked for next
                whole[place] = self._array(one, within)
            if not is_finite(whole[place]):
                self.not_finite.update(self.bound.piece_of[one].theirs)
        return whole

    def _array(self, one: Slice, within: tuple[slice, ...]) -> np.ndarray:
        piece = self.bound.piece_of[one]
        theirs = tuple(self.tensors[name].read() for name in piece.theirs)
        array: np.ndarray = piece.transform.inverse(theirs)[piece.ours.index(one)][within]
        return array


def _slices(bound: BoundMap, leaf: str, ranges: list[tuple[int, int]]) -> Iterator[Slice]:
    stacked = bound.num_stacked(leaf)
    for index in itertools.product(*(range(*ends) for ends in ranges[:stacked])):
        yield Slice(leaf, index)


def is_finite(array: np.ndarray) -> bool:
    """Whether all numbers are; looked at in parts, as what says so of each takes memory too."""
    return all(bool(np.isfinite(part).all()) for part in _parts(array))


def _parts(array: np.ndarray) -> Iterator[np.ndarray]:
    if not array.ndim:
        yield array
        return
    rows = max(1, _CHECKED_AT_ONCE // max(1, array[:1].size))
    yield from (array[i : i + rows] for i in range(0, len(array), rows))


def _fresh(cfg: Any, wanted: Mapping[str, Any], seed: int) -> dict[str, jax.Array]:
    """Returns first values of some leaves; makes no other."""

    def chosen() -> dict[str, jax.Array]:
        state = _named(cfg.build().init(seed))
        return {name: state[name].astype(leaf.dtype) for name, leaf in wanted.items()}

    shardings = {name: leaf.sharding for name, leaf in wanted.items()}
    made: dict[str, jax.Array] = jax.jit(chosen, out_shardings=shardings)() if wanted else {}
    return made


def _named(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a state by name, in their order."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
