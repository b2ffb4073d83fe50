"""Published weights for a model that is not quite the published one.

`WeightEdits` says what is not read but begins as ever, and whether the vocabulary grows.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from axcore.config.paths import matches, parse_pattern
from axcore.errors import ConfigError
from axcore.interop.quantized import Tensor
from axcore.interop.weight_map import BoundMap


@attrs.frozen
class WeightEdits:
    """What is done to published weights.

    Args:
        fresh: Globs of arrays of the state that are not read: they begin as in a new model.
        grows_vocabulary: Whether the model may have more tokens than the published one; those
            begin as the mean of all others.
    """

    fresh: tuple[str, ...] = ()
    grows_vocabulary: bool = False

    def ignored(self, bound: BoundMap) -> tuple[str, ...]:
        """Returns regular expressions of the arrays that are not read.

        Raises:
            ConfigError: A glob matches nothing.
        """
        return tuple(f"^{re.escape(name)}$" for glob in self.fresh for name in _found(glob, bound))


NO_EDITS = WeightEdits()


@attrs.frozen
class GrownTensor:
    """A tensor with more places in one dimension, which hold the mean of those it has.

    Source: Hewitt 2021, "Initializing new word embeddings for pretrained language models".

    Args:
        small: The tensor.
        shape: What becomes of its shape.
    """

    small: Tensor
    shape: tuple[int, ...]

    @property
    def file(self) -> Path:
        """The file that holds the smaller one."""
        return self.small.file

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its numbers."""
        return self.small.dtype

    def read(self) -> np.ndarray:
        """Returns the tensor, in host memory."""
        array = self.small.read()
        axis = _differing(array.shape, self.shape)[0]
        mean = array.astype(np.float32).mean(axis=axis, keepdims=True).astype(array.dtype)
        count = self.shape[axis] - array.shape[axis]
        return np.concatenate([array, np.repeat(mean, count, axis=axis)], axis=axis)


def grown(
    tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], sizes: tuple[int, int]
) -> dict[str, Tensor]:
    """Returns tensors, those of the vocabulary grown to what a model has.

    Args:
        tensors: All tensors, by name.
        shapes: Those that the model has.
        sizes: Tokens of the published vocabulary, and of the model's.
    """

    def is_of_vocabulary(name: str, tensor: Tensor) -> bool:
        wanted = shapes.get(name, tensor.shape)
        found = _differing(tensor.shape, wanted)
        return [(tensor.shape[i], wanted[i]) for i in found] == [sizes]

    return {
        name: GrownTensor(tensor, shapes[name]) if is_of_vocabulary(name, tensor) else tensor
        for name, tensor in tensors.items()
    }


def _differing(old: tuple[int, ...], new: tuple[int, ...]) -> list[int]:
    if len(old) != len(new):
        return []
    return [i for i, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1]]


def _found(glob: str, bound: BoundMap) -> list[str]:
    pattern = parse_pattern(glob)
    found = [name for name in bound.specs if matches(pattern, parse_pattern(name))]
    if not found:
        raise ConfigError(
            f"{glob!r} matches no array of the model that would be read",
            where="init_from.fresh",
            hint=f"name arrays by their paths in the state, as {next(iter(bound.specs))}",
        )
    return found
