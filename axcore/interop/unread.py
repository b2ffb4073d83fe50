"""`UnreadLeaf`: a leaf of a state that stays in its files until an engine takes its arrays."""

from typing import Any

import attrs
import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from axcore.interop.copying import host_device
from axcore.interop.origins import ArraySource, LeafOrigins, Origin
from axcore.interop.weight_map import Shape


@attrs.frozen(eq=False)
class UnreadLeaf:
    """A leaf of a state that is read where it is sliced, into the host's memory.

    It has what `restacked` asks of a leaf: a shape, and slices of the arrays stacked in it. So the
    layers of a model can be taken one by one, though they are one array where it trains.

    Args:
        name: In the state.
        source: Holds its arrays.
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

    def reshape(self, *shape: int) -> "UnreadLeaf":
        """Returns it with its arrays stacked in one dimension."""
        assert shape == (-1, *self.origins[0].shape)
        return attrs.evolve(self, stacked=(len(self.origins),))

    def __getitem__(self, arrays: slice) -> np.ndarray:
        """Reads some of its arrays, where they are stacked in one dimension.

        Raises:
            CheckpointError: One is damaged, or holds what is no number.
        """
        assert len(self.stacked) == 1
        origins: LeafOrigins = {(i,): one for i, one in enumerate(self.origins[arrays])}
        shape = (len(origins), *self.origins[0].shape)
        wanted = on_host(jax.ShapeDtypeStruct(shape, self.dtype))  # type: ignore[no-untyped-call]
        ((_, found),) = self.source.read({self.name: origins}, {self.name: wanted})
        return np.asarray(found)

    def read(self) -> np.ndarray:
        """Reads all of it.

        Raises:
            CheckpointError: An array is damaged, or holds what is no number.
        """
        return self.reshape(-1, *self.origins[0].shape)[:].reshape(self.shape)


def read_leaf(leaf: Any) -> Any:
    """Returns an array of a state, read if it was not yet."""
    return leaf.read() if isinstance(leaf, UnreadLeaf) else leaf


def on_host(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Returns the description of an array in the host's memory; where jax may use no processor, on
    the first device."""
    device = host_device()
    place = None if device is None else SingleDeviceSharding(device)
    found: jax.ShapeDtypeStruct = leaf.update(sharding=place)  # type: ignore[no-untyped-call]
    return found
