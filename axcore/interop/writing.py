"""Writing a state as published weights: tensor by tensor, in one file or several."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from axcore.errors import CheckpointError
from axcore.interop.copying import copy, map_ahead, pieces
from axcore.interop.family import Family
from axcore.interop.tensor_files import TensorSpec, shards, write_index, write_tensors
from axcore.interop.weight_map import Piece

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
    """Writes the weights of a model into a folder, and returns their number of bytes.

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
        TensorSpec(name, shape, np.dtype(dtype or leaves[piece.ours[0].leaf].dtype))
        for piece in bound.pieces
        for name, shape in zip(piece.theirs, piece.shapes, strict=True)
    ]
    arrays = (
        (name, array[at], np.dtype(dtype or array.dtype))
        for piece in bound.pieces
        for name, array in zip(
            piece.theirs, map(np.atleast_1d, published_arrays(piece, leaves)), strict=True
        )
        for at in pieces(array)
    )
    copies = map_ahead(lambda one: stored(*one), arrays)
    files = shards(specs, max_shard_bytes)
    for name, held in files.items():
        write_tensors(folder / name, held, copies)
    if len(files) > 1:
        write_index(folder, files)
    return sum(spec.nbytes for spec in specs)


def stored(name: str, array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Returns an array, or a piece of one, in the dtype in which it is stored.

    Raises:
        CheckpointError: A number is not finite in that.
    """
    copied = np.empty(array.shape, dtype)
    if not copy(array, copied):
        raise CheckpointError(
            f"{name} holds numbers that are nan or infinite, or become so in {dtype}",
            hint="write it in a dtype that holds larger numbers: --dtype bfloat16",
        )
    return copied


def published_arrays(piece: Piece, leaves: Mapping[str, jax.Array]) -> tuple[np.ndarray, ...]:
    """Returns the arrays that a piece of a weight map makes, on the host."""
    arrays: tuple[np.ndarray, ...] = piece.transform(
        tuple(on_host(leaves[one.leaf], one.index) for one in piece.ours)
    )
    return arrays


def on_host(leaf: jax.Array, index: tuple[int, ...]) -> np.ndarray:
    """Returns what a leaf holds at an index; moves no other part of it."""
    is_here = len(leaf.devices()) == 1 and next(iter(leaf.devices())).platform == "cpu"
    place: Any = (*index, ...)
    return np.asarray(leaf)[place] if is_here else np.asarray(leaf[index])


def named_leaves(state: Any) -> dict[str, jax.Array]:
    """Returns the arrays of a state by name.

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
