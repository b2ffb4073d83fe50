"""Reading published weights into a state: tensor by tensor, into arrays sharded from the start.

Where devices are processors, they take over the memory that tensors are copied into. Others get a
leaf at a time: their host holds its own part of one, all layers of a matrix for example.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import jax
import numpy as np

from axcore.errors import CheckpointError
from axcore.interop.copying import are_same, copy, empty_array, map_ahead, pieces
from axcore.interop.family import CORRECTIONS, TRAINING_ONLY, Family
from axcore.interop.quantized import Tensor, dequantized
from axcore.interop.surgery import NO_EDITS, GrownTensor, WeightEdits, grown
from axcore.interop.tensor_files import find_tensors
from axcore.interop.transforms import Arrays
from axcore.interop.weight_map import BoundMap, Piece, Slice, listed, named_specs

_Part = tuple[tuple[int, int], ...]
"""The part of an array that devices hold: first place and end, by dimension."""
Names = tuple[str, ...]
_Copy = tuple[Names, np.ndarray, np.ndarray]
"""Names of tensors, where their numbers are, and where they are to be."""


@attrs.frozen
class WeightPlan:
    """Which tensors of a folder a model's state is read from.

    Args:
        folder: Holds the tensors.
        cfg: The model's config.
        bound: The weight map of what is read.
        tensors: By name, all that `bound` names.
    """

    folder: Path
    cfg: Any
    bound: BoundMap
    tensors: Mapping[str, Tensor]

    def read(self, wanted: Any, *, seed: int = 0) -> Any:
        """Returns the state.

        Args:
            wanted: A description of it: shapes, dtypes and shardings. Numbers are converted to
                these dtypes; without a sharding, arrays are on the first device.
            seed: Of the arrays that are not read: adapters, what training measures.

        Raises:
            CheckpointError: Naming every tensor that holds a number that is not finite.
        """
        reader = _Reader(self.bound, self.tensors)
        described = _named(wanted)
        lacked = {name: leaf for name, leaf in described.items() if name not in self.bound.specs}
        fresh = _fresh(self.cfg, lacked, seed)
        read = [fresh[n] if n in fresh else reader.leaf(n, leaf) for n, leaf in described.items()]
        if reader.not_finite:
            raise CheckpointError(
                f"{len(reader.not_finite)} tensors hold numbers that are nan or infinite, or "
                "become so in the dtype that is wanted:\n" + listed(sorted(reader.not_finite)),
                where=str(self.folder),
                hint="fetch the files again, or ask for a dtype that holds larger numbers",
            )
        return jax.tree.unflatten(jax.tree.structure(wanted), read)

    def table(self) -> str:
        """Returns a line for each array of the state: its name, and what it begins as."""
        theirs: dict[str, list[str]] = {}
        for piece in self.bound.pieces:
            for one in piece.ours:
                theirs.setdefault(one.leaf, []).extend(piece.theirs)
        names = [name for name, _ in named_specs(self.cfg.build().param_specs())]
        width = max(map(len, names))
        return "\n".join(f"{name:{width}}  {self._origin(theirs.get(name))}" for name in names)

    def _origin(self, theirs: list[str] | None) -> str:
        if theirs is None:
            return "as in a new model"
        more = f" and {len(theirs) - 1} more" if len(theirs) > 1 else ""
        first = self.tensors[theirs[0]]
        grown = f", grown to {list(first.shape)}" if isinstance(first, GrownTensor) else ""
        return f"{theirs[0]}{more} ({first.file.name}){grown}"


def plan_weights(
    folder: Path,
    family: Family,
    cfg: Any,
    *,
    quantization: Mapping[str, Any] | None = None,
    edits: WeightEdits = NO_EDITS,
    vocabulary: tuple[int, int] | None = None,
) -> WeightPlan:
    """Returns what is read for a model; reads no weights.

    Args:
        folder: Holds a published model.
        family: The model's family.
        cfg: The model's config.
        quantization: `quantization_config` of `config.json`.
        edits: How the model's weights differ from the published ones.
        vocabulary: Tokens of the published model and of this one, where it has more.

    Raises:
        CheckpointError: Naming every tensor that is missing, unknown or of another shape.
        ConfigError: An edit is of an array that is not there.
    """
    without = (*TRAINING_ONLY, *CORRECTIONS)
    whole = family.bind(cfg, ignored=without)
    bound = family.bind(cfg, ignored=(*without, *edits.ignored(whole)))
    tensors = published_tensors(folder, family, quantization)
    for again, original in family.copies.items():
        if again not in whole.shapes and again in tensors and original in tensors:
            _check_same(tensors.pop(again), tensors[original], again, original)
    unread = whole.shapes.keys() - bound.shapes.keys()
    tensors = {name: tensor for name, tensor in tensors.items() if name not in unread}
    if vocabulary:
        tensors = grown(tensors, bound.shapes, vocabulary)
    _check_fit(bound, tensors, folder)
    return WeightPlan(folder, cfg, bound, tensors)


def published_tensors(
    folder: Path, family: Family, quantization: Mapping[str, Any] | None
) -> dict[str, Tensor]:
    """Returns a folder's tensors that hold numbers of the model, by full name.

    Raises:
        CheckpointError: A file is missing, truncated or damaged, or a tensor is in two files, or
            quantized as nothing here can read it.
    """
    found = find_tensors(folder)
    for pattern, name in family.renamed:
        found = {re.sub(pattern, name, n): place for n, place in found.items()}
    if not any(name.startswith(family.prefix) for name in found):
        found = {n if n in family.copies else family.prefix + n: t for n, t in found.items()}
    skipped = [re.compile(pattern) for pattern in family.skipped]
    kept = {n: t for n, t in found.items() if not any(one.search(n) for one in skipped)}
    return dequantized(kept, quantization)


def _check_same(again: Tensor, original: Tensor, name: str, repeats: str) -> None:
    """Checks that a tensor repeats another one, bit by bit."""
    if not are_same(again.read(), original.read()):
        raise CheckpointError(
            f"{name} is not {repeats}, which config.json says serves for both",
            where=str(again.file),
            hint="set tie_word_embeddings to false in config.json if the model has a head",
        )


def _check_fit(bound: BoundMap, tensors: Mapping[str, Tensor], folder: Path) -> None:
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

    def __init__(self, bound: BoundMap, tensors: Mapping[str, Tensor]) -> None:
        self.bound = bound
        self.tensors = tensors
        self.not_finite: set[str] = set()
        self.last: tuple[Piece | None, Arrays] = (None, ())

    def leaf(self, name: str, wanted: Any) -> jax.Array:
        """Returns a leaf; each of its tensors is read once, for the devices of this process."""
        shape = wanted.shape
        sharding = wanted.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        indices = sharding.addressable_devices_indices_map(shape).values()
        parts = {part: _empty(part, wanted.dtype) for part in {_ranges(i, shape) for i in indices}}
        for names in map_ahead(_copied, self._copies(name, parts)):
            self.not_finite.update(names)
        array: jax.Array = jax.make_array_from_callback(
            shape, sharding, lambda index: parts[_ranges(index, shape)]
        )
        return array.block_until_ready()  # before the next leaf takes memory of the host too

    def _copies(self, leaf: str, parts: Mapping[_Part, np.ndarray]) -> Iterator[_Copy]:
        """Yields what is copied into parts of a leaf, tensor by tensor."""
        stacked = self.bound.num_stacked(leaf)
        for one in _slices(leaf, {part[:stacked] for part in parts}):
            theirs, array = self._array(one)
            for part, whole in parts.items():
                if _is_in(one.index, part[:stacked]):
                    place = [i - begin for i, (begin, _) in zip(one.index, part, strict=False)]
                    within = tuple(slice(*ends) for ends in part[stacked:])
                    at: Any = (*place, ...)
                    source, target = map(np.atleast_1d, (array[within], whole[at]))
                    yield from ((theirs, source[rows], target[rows]) for rows in pieces(source))

    def _array(self, one: Slice) -> tuple[tuple[str, ...], np.ndarray]:
        """Returns an array of ours, and the names of the tensors that it is of."""
        piece = self.bound.piece_of[one]
        if self.last[0] is not piece:  # one tensor may hold all experts, quantized
            self.last = (None, ())
            theirs = tuple(self.tensors[name].read() for name in piece.theirs)
            self.last = (piece, piece.transform.inverse(theirs))
        return piece.theirs, self.last[1][piece.ours.index(one)]


def _ranges(index: Any, shape: Sequence[int]) -> _Part:
    return tuple(one.indices(size)[:2] for one, size in zip(index, shape, strict=True))


def _empty(part: _Part, dtype: Any) -> np.ndarray:
    return empty_array([end - begin for begin, end in part], dtype)


def _slices(leaf: str, stacked: Iterable[_Part]) -> list[Slice]:
    """Returns the arrays stacked in a leaf that are in any of some parts of its stack."""
    found = {i for part in stacked for i in itertools.product(*(range(*ends) for ends in part))}
    return [Slice(leaf, index) for index in sorted(found)]


def _is_in(index: tuple[int, ...], part: _Part) -> bool:
    return all(begin <= i < end for i, (begin, end) in zip(index, part, strict=True))


def _copied(one: _Copy) -> Names:
    """Makes a copy; returns the names of its tensors if a number of them is not finite."""
    names, source, target = one
    return () if copy(source, target) else names


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
