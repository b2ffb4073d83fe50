"""The arrays of a pretrained checkpoint: read tensor by tensor into sharded arrays, and written.

Where devices are processors, they take over the memory that tensors are copied into. Others get a
leaf at a time: their host holds its own part of one, all layers of a matrix for example.
"""

import itertools
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import jax
import numpy as np

from axcore.errors import CheckpointError
from axcore.interop.array_source import ArraySource, Index, LeafOrigins, Origin
from axcore.interop.family import ADAPTER_ARRAYS, TRAINING_ONLY, Family
from axcore.interop.host_arrays import are_same, copy, empty_array, map_ahead, pieces
from axcore.interop.quantized import QUANTIZATION, Tensor, dequantized
from axcore.interop.tensor_files import (
    TensorSpec,
    find_tensors,
    shards,
    write_index,
    write_tensors,
)
from axcore.interop.tensor_place import TensorPlace
from axcore.interop.weight_map import (
    Arrays,
    BoundMap,
    Piece,
    Shape,
    Slice,
    is_any,
    listed,
    unstacked,
)

_Part = tuple[tuple[int, int], ...]
"""The part of an array that devices hold: first place and end, by dimension."""
Names = tuple[str, ...]
_Copy = tuple[Names, np.ndarray, np.ndarray]
"""Names of tensors, where their numbers are, and where they are to be."""


@attrs.frozen(slots=False)
class CheckpointArrays(ArraySource):
    """The arrays of a pretrained checkpoint.

    Args:
        folder: Contains the tensors.
        bound: The weight map of the model.
        tensors: By name.
    """

    folder: Path
    bound: BoundMap
    tensors: Mapping[str, Tensor]

    @cached_property
    def places(self) -> dict[str, Slice]:
        """The arrays of the model, by name."""
        return unstacked(self.bound.specs)

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """The shapes of all arrays, by name."""
        specs = self.bound.specs
        # Without the stacked dimensions: each layer's array is one of its own in such files.
        return {n: specs[one.leaf].shape[len(one.index) :] for n, one in self.places.items()}

    def described(self, names: Iterable[str]) -> str:
        """Return the tensors of arrays, and the file of the first one."""
        pieces_of = (self.bound.piece_of[self.places[name]] for name in names)
        first, *others = dict.fromkeys(name for piece in pieces_of for name in piece.hf)
        more = f" and {len(others)} more" if others else ""
        return f"{first}{more} ({self.tensors[first].file.name})"

    def check(self, names: Iterable[str]) -> None:
        """Check that arrays have tensors of their shapes.

        Raises:
            CheckpointError: Naming every tensor that is missing or of another shape.
        """
        used = dict.fromkeys(self.bound.piece_of[self.places[name]] for name in names)
        pairs = [pair for piece in used for pair in zip(piece.hf, piece.shapes, strict=True)]
        problems = [
            f"{name} has shape {list(self.tensors[name].shape)}; the model's has {list(shape)}"
            for name, shape in pairs
            if name in self.tensors and self.tensors[name].shape != shape
        ]
        missing = [name for name, _ in pairs if name not in self.tensors]
        # The likeliest of many missing names, with a hint of its own.
        if missing and self._heads.issuperset(missing):
            raise CheckpointError(
                f"the folder has a base model without a head: {', '.join(missing)} is missing, "
                "and config.json does not tie it to the embeddings (tie_word_embeddings)",
                where=str(self.folder),
                hint="name the folder of the full model; or train a head from random values: "
                f"--modify \"pretrained(path={self.folder}, fresh=('head.**',))\"",
            )
        problems += [f"{name} is missing" for name in missing]
        unknown = [name for name in self.tensors if name not in self.bound.shapes]
        problems += [f"{name} is not of this model" for name in unknown]
        if problems:
            raise CheckpointError(
                f"{len(problems)} tensors do not fit the model that config.json describes:\n"
                + listed(problems),
                where=str(self.folder),
            )

    @property
    def _heads(self) -> set[str]:
        """The names of the head's tensors."""
        own = (
            p for p in self.bound.pieces if any(one.leaf.startswith("head.") for one in p.axcore)
        )
        return {name for piece in own for name in piece.hf}

    def read(
        self, leaves: Mapping[str, LeafOrigins], wanted: Mapping[str, Any]
    ) -> Iterator[tuple[str, jax.Array]]:
        """Yield leaves in order.

        Raises:
            CheckpointError: Naming every tensor that holds a number that is not finite.
        """
        reader = _Reader(self)
        for name, origins in leaves.items():
            yield name, reader.leaf(origins, wanted[name])
        if reader.not_finite:
            raise CheckpointError(
                f"{len(reader.not_finite)} tensors contain numbers that are nan or infinite, or "
                "become so in the dtype that is wanted:\n" + listed(sorted(reader.not_finite)),
                where=str(self.folder),
                hint="fetch the files again, or ask for a dtype with a larger range",
            )


def checkpoint_arrays(
    folder: Path, family: Family, cfg: Any, values: Mapping[str, Any], *, specs: Any = None
) -> CheckpointArrays:
    """Return the arrays of a pretrained checkpoint; read the headers of its files alone.

    Args:
        folder: Contains the model.
        family: Its family.
        cfg: Its config.
        values: What its `config.json` says.
        specs: The model's `param_specs()`, where they are made already.

    Raises:
        CheckpointError: A file is missing, truncated or damaged, or a copy is none.
    """
    ignored_arrays, found = (
        (*TRAINING_ONLY, *ADAPTER_ARRAYS),
        find_checkpoint_tensors(folder, family),
    )
    bound = family.bind(cfg, ignored=ignored_arrays, specs=specs, names=found)
    found = _with_prefix(found, bound)
    ignored = [
        name
        for name in found
        if name not in bound.shapes and is_any(family.mtp_layers(values), name)
    ]
    if ignored:
        warnings.warn(
            f"{len(ignored)} tensors are of layers for multi-token prediction, which the model "
            f"here and its exports lack; they are ignored: {listed(ignored)}",
            stacklevel=2,
        )
    tensors = selected(found, family, values, known=bound.shapes)
    # A tied head that some files have once more must
    # be equal, or one of the two is silently ignored.
    for again, original in family.copies.items():
        if again not in bound.shapes and again in tensors and original in tensors:
            _check_same(tensors.pop(again), tensors[original], again, original)
    return CheckpointArrays(folder, bound, tensors)


def _with_prefix(found: dict[str, TensorPlace], bound: BoundMap) -> dict[str, TensorPlace]:
    """Return tensors by full names; transformers saves a model without a head as its own root."""
    # Any known name is enough: a folder is of one kind.
    if not bound.shapes.keys().isdisjoint(found):
        return found
    roots = sorted({name.partition(".")[0] for name in bound.shapes})
    for root in roots:
        named = {f"{root}.{name}": place for name, place in found.items()}
        if not bound.shapes.keys().isdisjoint(named):
            return named
    return found


def find_checkpoint_tensors(folder: Path, family: Family) -> dict[str, TensorPlace]:
    """Return the places of a folder's tensors, by the names that the family's map has for them.

    Raises:
        CheckpointError: A file is missing, truncated or damaged, or a tensor is in two files.
    """
    found = find_tensors(folder)
    for pattern, name in family.renamed:
        found = {re.sub(pattern, name, n): place for n, place in found.items()}
    if not any(name.startswith(family.prefix) for name in found):
        found = {n if n in family.copies else family.prefix + n: t for n, t in found.items()}
    return found


def selected(
    found: dict[str, TensorPlace],
    family: Family,
    values: Mapping[str, Any],
    *,
    known: Collection[str] = (),
) -> dict[str, Tensor]:
    """Return the tensors that contain numbers of the model, by full name.

    Args:
        found: All tensors of the folder.
        family: Its family.
        values: What its `config.json` says, `quantization_config` for one.
        known: Names of tensors that are kept, though models of other sizes have no use for them.

    Raises:
        CheckpointError: A tensor is quantized as nothing here can read it.
    """
    skipped = (*family.skipped, *family.mtp_layers(values))
    settings = values.get(QUANTIZATION)
    tensors: Mapping[str, Tensor] = found if settings is None else dequantized(found, settings)
    left = {n: one for n, one in tensors.items() if n in known or not is_any(skipped, n)}
    if settings is None or not known:
        return left
    # Early quantizers gave every module a bias, of zeros where the model has none.
    return {n: one for n, one in left.items() if n in known or not _is_zero_bias(n, one)}


def _is_zero_bias(name: str, tensor: Tensor) -> bool:
    return name.endswith(".bias") and not tensor.read().any()


def _check_same(again: Tensor, original: Tensor, name: str, repeats: str) -> None:
    """Check that a tensor repeats another one, bit by bit."""
    if not are_same(again.read(), original.read()):
        raise CheckpointError(
            f"{name} is not {repeats}, which config.json says serves for both",
            where=str(again.file),
            hint="set tie_word_embeddings to false in config.json if the model has a head",
        )


class _Reader:
    """Reads leaves of a state; keeps the names of tensors that contain NaN or infinity."""

    def __init__(self, source: CheckpointArrays) -> None:
        self.source = source
        self.not_finite: set[str] = set()
        self.last: tuple[Piece | None, Arrays] = (None, ())

    def leaf(self, origins: LeafOrigins, wanted: Any) -> jax.Array:
        """Return a leaf; each of its tensors is read once, for the devices of this process."""
        shape = wanted.shape
        # Arrays for the host's memory have no sharding, and go to the first device of this process.
        sharding = wanted.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        indices = sharding.addressable_devices_indices_map(shape).values()
        # A set: devices that replicate a part share one buffer, and it is filled once.
        parts = {part: _empty(part, wanted.dtype) for part in {_ranges(i, shape) for i in indices}}
        for names in map_ahead(_copied, self._copies(origins, parts)):
            self.not_finite.update(names)
        array: jax.Array = jax.make_array_from_callback(
            shape, sharding, lambda index: parts[_ranges(index, shape)]
        )
        return array.block_until_ready()  # before the next leaf takes memory of the host too

    def _copies(self, origins: LeafOrigins, parts: Mapping[_Part, np.ndarray]) -> Iterator[_Copy]:
        """Yield what is copied into parts of a leaf, tensor by tensor."""
        stacked = len(next(iter(origins)))
        # Other hosts read the arrays of their own devices, so only those of a local part are read.
        for index in _indices({part[:stacked] for part in parts}):
            # A place without an origin may hold anything, and another edit fills it.
            if index not in origins:
                continue
            hf, array = self._array(origins[index])
            for part, whole in parts.items():
                if _is_in(index, part[:stacked]):
                    place = [i - begin for i, (begin, _) in zip(index, part, strict=False)]
                    within = tuple(slice(*ends) for ends in part[stacked:])
                    # Replicas on other devices share the buffer, so it is written once.
                    at: Any = (*place, ...)
                    source, target = map(np.atleast_1d, (array[within], whole[at]))
                    # In pieces, so that all threads help with one large tensor.
                    yield from ((hf, source[rows], target[rows]) for rows in pieces(source))

    def _array(self, origin: Origin) -> tuple[tuple[str, ...], np.ndarray]:
        """Return an array of the model, and the names of its tensors."""
        one = self.source.places[origin.source]
        # By identity below: many arrays are slices of one
        # tensor, and reading that once is what makes it fast.
        piece = self.source.bound.piece_of[one]
        if self.last[0] is not piece:  # one tensor may hold all experts, quantized
            self.last = (None, ())  # freed before the next is read, not after
            hf = tuple(self.source.tensors[name].read() for name in piece.hf)
            self.last = (piece, piece.transform.inverse(hf))
        return piece.hf, origin.made(self.last[1][piece.axcore.index(one)])


def _ranges(index: Any, shape: Sequence[int]) -> _Part:
    return tuple(one.indices(size)[:2] for one, size in zip(index, shape, strict=True))


def _empty(part: _Part, dtype: Any) -> np.ndarray:
    return empty_array([end - begin for begin, end in part], dtype)


def _indices(stacked: Iterable[_Part]) -> list[Index]:
    """Return the places of the arrays stacked in a leaf that are in any of some parts of it."""
    found = {i for part in stacked for i in itertools.product(*(range(*ends) for ends in part))}
    return sorted(found)


def _is_in(index: Index, part: _Part) -> bool:
    return all(begin <= i < end for i, (begin, end) in zip(index, part, strict=True))


def _copied(one: _Copy) -> Names:
    """Make a copy; return the names of its tensors if a number of them is not finite."""
    names, source, target = one
    return () if copy(source, target) else names


DEFAULT_SHARD_BYTES = 5_000_000_000


def write_weights(
    folder: Path,
    family: Family,
    cfg: Any,
    state: Any,
    *,
    dtype: Any = None,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> int:
    """Write the weights of a model into a folder, and return their number of bytes.

    Args:
        folder: Where to write.
        family: The model's family.
        cfg: The model's config.
        state: Its state.
        dtype: Of all tensors; each array's own by default.
        max_shard_bytes: Size of a file at most; a tensor is never split.

    Raises:
        CheckpointError: A process holds only a part of an array, or a number is not finite.
    """
    bound, leaves = family.bind(cfg), named_leaves(state)
    specs = [
        # Sizes first, without any array: files are cut before anything is converted.
        TensorSpec(name, shape, np.dtype(dtype or leaves[piece.axcore[0].leaf].dtype))
        for piece in bound.pieces
        for name, shape in zip(piece.hf, piece.shapes, strict=True)
    ]
    arrays = (
        (name, array[at], np.dtype(dtype or array.dtype))
        for piece in bound.pieces
        for name, array in zip(piece.hf, map(np.atleast_1d, hf_arrays(piece, leaves)), strict=True)
        for at in pieces(array)
    )
    # In order, since files are written from beginning
    # to end; threads convert the next pieces meanwhile.
    copies = map_ahead(lambda one: stored(*one), arrays)
    files = shards(specs, max_shard_bytes)
    for name, held in files.items():
        write_tensors(folder / name, held, copies)
    if len(files) > 1:
        write_index(folder, files)
    return sum(spec.nbytes for spec in specs)


def stored(name: str, array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Return an array, or a piece of one, in the dtype in which it is stored.

    Raises:
        CheckpointError: A number is not finite in that.
    """
    copied = np.empty(array.shape, dtype)
    # Looked at while it is converted: a number may only become infinite in the narrower dtype.
    if not copy(array, copied):
        raise CheckpointError(
            f"{name} contains numbers that are nan or infinite, or become so in {dtype}",
            hint="write it in a dtype with a larger range: --dtype bfloat16",
        )
    return copied


def hf_arrays(piece: Piece, leaves: Mapping[str, jax.Array]) -> tuple[np.ndarray, ...]:
    """Return the arrays that a piece of a weight map makes, on the host."""
    arrays: tuple[np.ndarray, ...] = piece.transform(
        tuple(on_host(leaves[one.leaf], one.index) for one in piece.axcore)
    )
    return arrays


def on_host(leaf: jax.Array, index: tuple[int, ...]) -> np.ndarray:
    """Return what a leaf holds at an index; move no other part of it."""
    is_here = len(leaf.devices()) == 1 and next(iter(leaf.devices())).platform == "cpu"
    place: Any = (*index, ...)
    # Sliced on the device, so that one layer is moved and not the stack.
    return np.asarray(leaf)[place] if is_here else np.asarray(leaf[index])


def named_leaves(state: Any) -> dict[str, jax.Array]:
    """Return the arrays of a state by name.

    Raises:
        CheckpointError: A process holds only a part of one.
    """
    named = {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }
    partial = [name for name, leaf in named.items() if not leaf.is_fully_addressable]
    if partial:
        raise CheckpointError(
            f"{len(partial)} arrays are spread over several processes, {partial[0]} for one",
            hint="convert the run in one process: its checkpoint is read by any number of devices",
        )
    return named
