"""Exact, invertible transforms between our arrays and those of a published checkpoint.

A transform takes a tuple of arrays to a tuple of arrays and moves numbers without changing one.
Transforms are composed with `Chain`; `inverse` runs any of them backwards. They use the array API
alone, so that `jax.eval_shape` says what comes out.
"""

from abc import ABC, abstractmethod
from typing import Any

import attrs
import numpy as np

Arrays = tuple[Any, ...]


class Transform(ABC):
    """A one-to-one function of arrays. Called on ours, it returns theirs."""

    @abstractmethod
    def __call__(self, arrays: Arrays) -> Arrays:
        """Returns what becomes of the arrays."""

    @property
    @abstractmethod
    def inverse(self) -> "Transform":
        """The transform that undoes this one."""


@attrs.frozen
class Same(Transform):
    """Leaves arrays as they are."""

    def __call__(self, arrays: Arrays) -> Arrays:
        """Returns the arrays."""
        return arrays

    @property
    def inverse(self) -> Transform:
        """Itself."""
        return self


@attrs.frozen
class Transpose(Transform):
    """Swaps the two dimensions of each matrix."""

    def __call__(self, arrays: Arrays) -> Arrays:
        """Returns each matrix transposed."""
        return tuple(array.T for array in arrays)

    @property
    def inverse(self) -> Transform:
        """Itself."""
        return self


@attrs.frozen
class SplitAxis(Transform):
    """Splits one dimension of each array in two, of which the first has `count` places.

    Args:
        count: Places of the new dimension, heads usually.
        axis: The dimension, from the front.
    """

    count: int
    axis: int = 0

    def __call__(self, arrays: Arrays) -> Arrays:
        """Returns each array with another dimension."""
        return tuple(
            array.reshape(*array.shape[: self.axis], self.count, -1, *array.shape[self.axis + 1 :])
            for array in arrays
        )

    @property
    def inverse(self) -> Transform:
        """Joins the two dimensions."""
        return JoinAxes(self.count, self.axis)


@attrs.frozen
class JoinAxes(Transform):
    """Makes one dimension of `axis`, which has `count` places, and the one behind it."""

    count: int
    axis: int = 0

    def __call__(self, arrays: Arrays) -> Arrays:
        """Returns each array with a dimension less."""
        return tuple(
            array.reshape(*array.shape[: self.axis], -1, *array.shape[self.axis + 2 :])
            for array in arrays
        )

    @property
    def inverse(self) -> Transform:
        """Splits the dimension again."""
        return SplitAxis(self.count, self.axis)


@attrs.frozen
class Permute(Transform):
    """Puts place `order[i]` of a dimension at place `i`."""

    order: tuple[int, ...]
    axis: int = 0

    def __call__(self, arrays: Arrays) -> Arrays:
        """Returns each array in another order."""
        order = np.array(self.order)
        return tuple(_api(array).take(array, order, axis=self.axis) for array in arrays)

    @property
    def inverse(self) -> Transform:
        """Puts every place back."""
        return Permute(tuple(np.argsort(self.order).tolist()), self.axis)


@attrs.frozen
class Concatenate(Transform):
    """Fuses arrays into one, along a dimension in which they have these sizes."""

    sizes: tuple[int, ...]
    axis: int = 0

    def __call__(self, arrays: Arrays) -> Arrays:
        """Returns one array."""
        return (_api(arrays[0]).concatenate(arrays, axis=self.axis),)

    @property
    def inverse(self) -> Transform:
        """Splits the array."""
        return Split(self.sizes, self.axis)


@attrs.frozen
class Split(Transform):
    """Splits one array into several of these sizes."""

    sizes: tuple[int, ...]
    axis: int = 0

    def __call__(self, arrays: Arrays) -> Arrays:
        """Returns as many arrays as there are sizes, views of the one."""
        ends = np.cumsum(self.sizes).tolist()
        before = (slice(None),) * (self.axis % arrays[0].ndim)
        return tuple(
            arrays[0][(*before, slice(end - size, end))]
            for size, end in zip(self.sizes, ends, strict=True)
        )

    @property
    def inverse(self) -> Transform:
        """Fuses them again."""
        return Concatenate(self.sizes, self.axis)


@attrs.frozen
class StackArrays(Transform):
    """Makes one array of each `count` arrays that follow each other, along a new dimension."""

    count: int
    axis: int = 0

    def __call__(self, arrays: Arrays) -> Arrays:
        """Returns as many arrays as there are groups."""
        groups = (arrays[i : i + self.count] for i in range(0, len(arrays), self.count))
        return tuple(_api(group[0]).stack(group, axis=self.axis) for group in groups)

    @property
    def inverse(self) -> Transform:
        """Takes the groups apart."""
        return UnstackArrays(self.count, self.axis)


@attrs.frozen
class UnstackArrays(Transform):
    """Makes one array of each of the `count` places of a dimension."""

    count: int
    axis: int = 0

    def __call__(self, arrays: Arrays) -> Arrays:
        """Returns the arrays of the first one's places, then those of the second one's."""
        return tuple(
            array[(*(slice(None),) * (self.axis % array.ndim), i)]
            for array in arrays
            for i in range(self.count)
        )

    @property
    def inverse(self) -> Transform:
        """Stacks them again."""
        return StackArrays(self.count, self.axis)


@attrs.frozen(init=False)
class Chain(Transform):
    """One transform after the other."""

    parts: tuple[Transform, ...]

    def __init__(self, *parts: Transform) -> None:
        self.__attrs_init__(parts)

    def __call__(self, arrays: Arrays) -> Arrays:
        """Returns what the last one makes of what those before it made."""
        for part in self.parts:
            arrays = part(arrays)
        return arrays

    @property
    def inverse(self) -> Transform:
        """Undoes the last one first."""
        return Chain(*(part.inverse for part in reversed(self.parts)))


def interleaved(rotated: int, *, kept: int = 0, rest: int = 0, axis: int = 0) -> Permute:
    """Returns the permutation from half-split rotary rows to neighbouring pairs.

    Args:
        rotated: Rows that positions rotate; ours pair row `i` with `i + rotated / 2`.
        kept: Rows before them that stay in place.
        rest: Rows behind them that stay in place.
        axis: The dimension of the rows.
    """
    pairs = np.arange(rotated).reshape(2, -1).T.reshape(-1) + kept
    end = kept + rotated
    return Permute((*range(kept), *pairs.tolist(), *range(end, end + rest)), axis)


def _api(array: Any) -> Any:
    return array.__array_namespace__()
