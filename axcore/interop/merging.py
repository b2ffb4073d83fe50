"""Merge pretrained checkpoints tensor by tensor, so that memory holds one of each at a time.

Numbers are computed in float32, and stored in the dtype that the first model has.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from axcore.errors import CheckpointError, ConfigError
from axcore.interop.checkpoint_arrays import DEFAULT_SHARD_BYTES, stored
from axcore.interop.tensor_files import (
    TensorSpec,
    find_tensors,
    new_folder,
    shards,
    write_index,
    write_tensors,
)
from axcore.interop.tensor_place import TensorPlace
from axcore.interop.weight_map import listed

_MergeMethod = Literal["linear", "slerp", "ties"]
_Merge = Callable[[list[np.ndarray], np.ndarray], np.ndarray]
# Below it the directions are parallel, and the
# division by the sine would be one by rounding errors.
_PARALLEL = 1e-6
"""Below this sine of their angle, two tensors are merged linearly."""


def linear(tensors: Sequence[np.ndarray], weights: np.ndarray) -> np.ndarray:
    """Return the weighted mean of tensors; weights add up to 1."""
    total = np.zeros(tensors[0].shape, np.float32)
    for tensor, weight in zip(tensors, weights, strict=True):
        total += np.float32(weight) * tensor
    return total


def slerp(tensors: Sequence[np.ndarray], weights: np.ndarray) -> np.ndarray:
    """Return a tensor on the great circle between the directions of two.

    Source: Shoemake 1985, "Animating rotation with quaternion curves", section 3.3.
    """
    a, b = (tensor.reshape(-1).astype(np.float64) for tensor in tensors)
    # In float64, as a dot product of a billion numbers loses its last digits in float32.
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    angle = np.arccos(np.clip(a @ b / lengths, -1.0, 1.0)) if lengths else 0.0
    if np.sin(angle) < _PARALLEL:
        return linear(tensors, weights)
    parts = np.sin(weights * angle) / np.sin(angle)
    turned: np.ndarray = (parts[0] * a + parts[1] * b).astype(np.float32)
    return turned.reshape(tensors[0].shape)


def ties(density: float) -> _Merge:
    """Return the merge of tensors by their differences from a base, the last of the tensors.

    Of each difference the largest are kept, as many as `density` says; of each number the sign
    with more weight wins, and the mean is of those that have it.

    Source: Yadav et al. 2023, arXiv:2306.01708, section 4.
    """

    def merged(tensors: list[np.ndarray], weights: np.ndarray) -> np.ndarray:
        *others, base = tensors
        changes = np.stack([_trimmed(other - base, density) for other in others])
        shares = weights.astype(np.float32).reshape(-1, *[1] * base.ndim)
        sign = np.sign((shares * changes).sum(0))
        agreeing = shares * ((np.sign(changes) == sign) & (changes != 0))
        # Where no model agrees nothing is added; the bound only keeps 0 / 0 away.
        total = np.maximum(agreeing.sum(0), np.float32(1e-30))
        mean: np.ndarray = (agreeing * changes).sum(0) / total
        return np.asarray(base + mean, np.float32)

    return merged


def _trimmed(change: np.ndarray, density: float) -> np.ndarray:
    keep = max(1, round(density * change.size)) if change.size else 0
    if keep >= change.size:
        return change
    size = np.abs(change)
    # `partition`, which is linear: sorting a full tensor takes longer than reading it.
    smallest = np.partition(size.reshape(-1), change.size - keep)[change.size - keep]
    return np.where(size >= smallest, change, np.float32(0.0))


def merge_models(
    folders: Sequence[Path | str],
    target: Path | str,
    *,
    method: _MergeMethod,
    weights: Sequence[float] | None = None,
    base: Path | str | None = None,
    density: float = 0.2,
) -> int:
    """Write the merge of pretrained checkpoints into a new folder; return its number of tensors.

    Args:
        folders: Hold the models. Config and tokenizer are the first one's.
        target: Where to write; it may not exist, or must be empty.
        method: `linear`, `slerp` or `ties`.
        weights: Of the models, divided by their sum; by default all weigh the same.
        base: The model that `ties` takes differences from.
        density: Share of each difference that `ties` keeps.

    Raises:
        CheckpointError: Models differ in tensors or shapes, all of which are named, or a file is
            damaged.
        ConfigError: Weights, base or density do not fit the method.
    """
    paths = [Path(one).expanduser() for one in folders]
    shares = _shares(len(paths), weights)
    _check_method(method, len(paths), base, density)
    ways: dict[str, _Merge] = {"linear": linear, "slerp": slerp, "ties": ties(density)}
    merge, every = ways[method], [*paths, *([] if base is None else [Path(base).expanduser()])]
    places = [find_tensors(path) for path in every]
    _check_same_shapes(places, every)
    # All tensors keep the dtype of the first model.
    specs = [TensorSpec(name, one.shape, one.dtype) for name, one in places[0].items()]

    def pieces(names: Sequence[str]) -> Iterator[np.ndarray]:
        for name in names:
            # One tensor of all models is in memory at a time.
            tensors = [one[name].read().astype(np.float32) for one in places]
            yield stored(name, merge(tensors, shares), places[0][name].dtype)

    with new_folder(target) as draft:
        files = shards(specs, DEFAULT_SHARD_BYTES)
        for file, own in files.items():
            write_tensors(draft / file, own, pieces([spec.name for spec in own]))
        if len(files) > 1:
            write_index(draft, files)
        # `in`, not a suffix: the index of the source's shards must not be copied either.
        for other in paths[0].iterdir():
            if other.is_file() and ".safetensors" not in other.name:
                shutil.copyfile(other, draft / other.name)
    return len(specs)


def _shares(count: int, weights: Sequence[float] | None) -> np.ndarray:
    given = np.ones(count) if weights is None else np.asarray(weights, np.float64)
    if len(given) != count or not np.isfinite(given).all() or given.sum() <= 0:
        raise ConfigError(
            f"weights are {given.tolist()} for {count} models; their sum has to be above 0",
            where="--weights",
            hint="give one for each model, in their order: --weights 0.7,0.3",
        )
    shares: np.ndarray = given / given.sum()
    return shares


def _check_method(method: str, count: int, base: Path | str | None, density: float) -> None:
    fewest = 1 if method == "ties" else 2
    if count < fewest or (method == "slerp" and count != 2):
        wanted = "two" if method == "slerp" else f"{fewest} or more"
        raise ConfigError(f"{method} merges {wanted} models; there are {count}", where="MODELS")
    if (method == "ties") != (base is not None):
        what = "needs the model that the others began as" if base is None else "has no base"
        raise ConfigError(f"{method} {what}", where="--base", hint="--base is for ties alone")
    if not 0 < density <= 1:
        raise ConfigError(f"density is {density}; expected above 0, up to 1", where="--density")


def _check_same_shapes(places: Sequence[Mapping[str, TensorPlace]], folders: list[Path]) -> None:
    first, problems = places[0], []
    for other, folder in zip(places[1:], folders[1:], strict=True):
        problems += [f"{name} is not in both" for name in sorted(first.keys() ^ other.keys())]
        problems += [
            f"{name} has shape {list(one.shape)}; in {folder} it has {list(other[name].shape)}"
            for name, one in first.items()
            if name in other and one.shape != other[name].shape
        ]
    problems += [f"{n} contains {p.dtype}" for n, p in first.items() if p.dtype.kind in "biu"]
    if problems:
        raise CheckpointError(
            f"{len(problems)} tensors cannot be merged:\n" + listed(problems),
            where=str(folders[0]),
            hint="merge models of one architecture and size, with weights that are not quantized",
        )
