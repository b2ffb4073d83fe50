"""Where arrays come from: `ArraySource`, `Origin` and `LazyArray`.

An origin says which array of a source an array of a model begins as, and what is done to it.
Changes are functions of one array, neither of layers nor of experts that are stacked with it. They
use the array API alone, so that they work in host memory and on devices.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs
import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from axcore.interop.host_arrays import host_device
from axcore.interop.weight_map import Shape

Index = tuple[int, ...]
"""The place of an array in the dimensions that are stacked in a leaf; empty where none are."""


class ArrayChange(ABC):
    """What is done to an array before it is used; as text, what a table says about it."""

    @abstractmethod
    def __call__(self, array: Any) -> Any:
        """Return the changed array."""


@attrs.frozen
class Noise:
    """Gaussian noise with a deviation of `scale` times the root mean square of each matrix."""

    scale: float
    seed: int


@attrs.frozen
class Origin:
    """The array of a source that an array of a model begins as.

    Args:
        source: Its name there, as if nothing were stacked.
        shape: The shape that it has after all changes.
        changes: In order.
        noise: Added in the end.
    """

    source: str
    shape: Shape
    changes: tuple[ArrayChange, ...] = ()
    noise: Noise | None = None

    def changed(self, change: ArrayChange, shape: Shape | None = None) -> "Origin":
        """Return the origin with one more change, after which the array has a shape."""
        more = (*self.changes, change)
        return attrs.evolve(self, changes=more, shape=self.shape if shape is None else shape)

    def made(self, array: Any) -> Any:
        """Return what the changes make of the source's array."""
        for change in self.changes:
            array = change(array)
        return array


@attrs.frozen
class GrownByMean(ArrayChange):
    """More places in a dimension, which hold the mean of those that are there.

    Source: Hewitt 2021, "Initializing new word embeddings for pretrained language models".
    """

    axis: int
    size: int

    def __call__(self, array: Any) -> Any:
        """Return the larger array."""
        api = array.__array_namespace__()
        # In float32: a mean over a vocabulary in bfloat16 stops growing after some hundred rows.
        mean = array.astype(np.float32).mean(axis=self.axis, keepdims=True).astype(array.dtype)
        shape = list(array.shape)
        shape[self.axis] = self.size - shape[self.axis]
        return api.concatenate([array, api.broadcast_to(mean, tuple(shape))], axis=self.axis)

    def __str__(self) -> str:
        return f"grown to {self.size} places, new ones their mean"


@attrs.frozen
class RepeatedRows(ArrayChange):
    """More rows, which are those that are there again, from the first one on.

    Source: Beltagy et al. 2020, arXiv:2004.05150, section 5.
    """

    size: int

    def __call__(self, array: Any) -> Any:
        """Return the longer array."""
        rows = np.arange(self.size) % array.shape[0]
        return array.__array_namespace__().take(array, rows, axis=0)

    def __str__(self) -> str:
        return f"repeated to {self.size} rows"


@attrs.frozen
class InterpolatedRows(ArrayChange):
    """More rows between the first and the last one, each on the line between adjacent rows."""

    size: int

    def __call__(self, array: Any) -> Any:
        """Return the longer array."""
        api = array.__array_namespace__()
        place = np.linspace(0.0, array.shape[0] - 1, self.size)
        # The last row has none after it; one earlier, with weight 1, gives the same.
        before = np.minimum(place.astype(np.int64), max(0, array.shape[0] - 2))
        weight = (place - before).astype(np.float32).reshape(-1, *[1] * (array.ndim - 1))
        rows = array.astype(np.float32)
        after = np.minimum(before + 1, array.shape[0] - 1)
        mixed = (
            api.take(rows, before, axis=0) * (1 - weight) + api.take(rows, after, axis=0) * weight
        )
        return mixed.astype(array.dtype)

    def __str__(self) -> str:
        return f"interpolated to {self.size} rows"


@attrs.frozen
class Zeroed(ArrayChange):
    """Zeros instead of all numbers."""

    def __call__(self, array: Any) -> Any:
        """Return zeros."""
        return array.__array_namespace__().zeros_like(array)

    def __str__(self) -> str:
        return "copies zero"


LeafOrigins = Mapping[Index, Origin]
"""What the arrays stacked in a leaf begin as; those left out are randomly initialized."""


class ArraySource(ABC):
    """Arrays to begin with, named as those of a model in which nothing is stacked."""

    @property
    @abstractmethod
    def shapes(self) -> Mapping[str, Shape]:
        """The shapes of all arrays, by name."""

    @abstractmethod
    def described(self, names: Iterable[str]) -> str:
        """Return where arrays are, for a table."""

    @abstractmethod
    def check(self, names: Iterable[str]) -> None:
        """Check that these arrays can be read, as far as that shows without reading numbers.

        Raises:
            CheckpointError: Naming all that cannot.
        """

    @abstractmethod
    def read(
        self, leaves: Mapping[str, LeafOrigins], wanted: Mapping[str, Any]
    ) -> Iterator[tuple[str, jax.Array]]:
        """Yield leaves of a model's state by name, in any order; noise is not added yet.

        Args:
            leaves: What each is made of. Places without an origin may hold anything.
            wanted: Their shapes, dtypes and shardings.

        Raises:
            CheckpointError: An array is damaged, or holds NaN or infinity.
        """


@attrs.frozen
class JoinedSources(ArraySource):
    """The arrays of several sources that have none in common; a leaf is of one of them."""

    sources: tuple[ArraySource, ...]

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """The shapes of all arrays, by name."""
        return {name: shape for one in self.sources for name, shape in one.shapes.items()}

    def described(self, names: Iterable[str]) -> str:
        """Return where arrays are, for a table."""
        names = tuple(names)
        parts = [[name for name in names if name in one.shapes] for one in self.sources]
        pairs = zip(self.sources, parts, strict=True)
        return " and ".join(one.described(part) for one, part in pairs if part)

    def check(self, names: Iterable[str]) -> None:
        """Check arrays in the source that has them."""
        names = tuple(names)
        for one in self.sources:
            one.check(name for name in names if name in one.shapes)

    def read(
        self, leaves: Mapping[str, LeafOrigins], wanted: Mapping[str, Any]
    ) -> Iterator[tuple[str, jax.Array]]:
        """Yield leaves, those of the first source first."""
        for one in self.sources:
            own = {
                name: origins
                for name, origins in leaves.items()
                if next(iter(origins.values())).source in one.shapes
            }
            yield from one.read(own, wanted)


@attrs.frozen(eq=False)
class LazyArray:
    """A leaf of a state that is read where it is sliced, into the host's memory.

    It has what `restacked` asks of a leaf: a shape, and slices of the arrays stacked in it. So the
    layers of a model can be taken one by one, though they are one array where it trains.

    Args:
        name: In the state.
        source: Contains its arrays.
        origins: What each of its arrays begins as, in order.
        stacked: The dimensions that they are stacked in.
        dtype: Of its numbers.
        sharding: Where an engine has it that is given no mesh; None on the first device.
    """

    name: str
    source: ArraySource = attrs.field(repr=False)
    origins: tuple[Origin, ...] = attrs.field(repr=False)
    stacked: Shape
    dtype: Any
    sharding: Any = None

    @property
    def shape(self) -> Shape:
        """Its shape."""
        return (*self.stacked, *self.origins[0].shape)

    def reshape(self, *shape: int) -> "LazyArray":
        """Return it with its arrays stacked in one dimension."""
        # `restacked` asks for nothing else, and more would
        # need a general reshape of what is not read.
        assert shape == (-1, *self.origins[0].shape)
        return attrs.evolve(self, stacked=(len(self.origins),))

    def __getitem__(self, arrays: slice) -> np.ndarray:
        """Read some of its arrays, where they are stacked in one dimension.

        Raises:
            CheckpointError: One is damaged, or holds NaN or infinity.
        """
        # A slice of a part of stacked dimensions is not one of full arrays.
        assert len(self.stacked) == 1
        origins: LeafOrigins = {(i,): one for i, one in enumerate(self.origins[arrays])}
        shape = (len(origins), *self.origins[0].shape)
        wanted = on_host(jax.ShapeDtypeStruct(shape, self.dtype))  # type: ignore[no-untyped-call]
        ((_, found),) = self.source.read({self.name: origins}, {self.name: wanted})
        return np.asarray(found)

    def read(self) -> np.ndarray:
        """Read all of it.

        Raises:
            CheckpointError: An array is damaged, or holds NaN or infinity.
        """
        return self.reshape(-1, *self.origins[0].shape)[:].reshape(self.shape)


def read_leaf(leaf: Any) -> Any:
    """Return an array of a state, read if it was not yet."""
    return leaf.read() if isinstance(leaf, LazyArray) else leaf


def on_host(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Return the description of an array in the host's memory; where jax may use no processor, on
    the first device."""
    device = host_device()
    place = None if device is None else SingleDeviceSharding(device)
    found: jax.ShapeDtypeStruct = leaf.update(sharding=place)  # type: ignore[no-untyped-call]
    return found
