"""Writing a state as published weights: tensor by tensor, in one file or several."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from axcore.errors import CheckpointError
from axcore.interop.family import Family
from axcore.interop.reading import is_finite
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
    bound, leaves = family.bind(cfg), _leaves(state)
    specs = [
        TensorSpec(name, shape, np.dtype(dtype or leaves[piece.ours[0].leaf].dtype))
        for piece in bound.pieces
        for name, shape in zip(piece.theirs, piece.shapes, strict=True)
    ]
    tensors = (
        _stored(array, name, dtype or array.dtype)
        for piece in bound.pieces
        for name, array in zip(piece.theirs, _theirs(piece, leaves), strict=True)
    )
    files = shards(specs, max_shard_bytes)
    for name, held in files.items():
        write_tensors(folder / name, held, tensors)
    if len(files) > 1:
        write_index(folder, files)
    return sum(spec.nbytes for spec in specs)


def _stored(array: np.ndarray, name: str, dtype: Any) -> np.ndarray:
    """Returns a tensor in the dtype in which it is stored."""
    with np.errstate(over="ignore"):  # looked for next
        stored: np.ndarray = array.astype(dtype, copy=False)
    if not is_finite(stored):
        raise CheckpointError(
            f"{name} holds numbers that are nan or infinite, or become so in {np.dtype(dtype)}",
            hint="write it in a dtype that holds larger numbers: --dtype bfloat16",
        )
    return stored


def _theirs(piece: Piece, leaves: dict[str, jax.Array]) -> Iterator[np.ndarray]:
    ours = (leaves[one.leaf][one.index] if one.index else leaves[one.leaf] for one in piece.ours)
    yield from piece.transform(tuple(np.asarray(array) for array in ours))


def _leaves(state: Any) -> dict[str, jax.Array]:
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
