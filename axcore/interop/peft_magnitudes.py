"""Magnitudes in the format of PEFT: whole lengths there, and here how far they are from the base's.

So reading and writing them takes the weights that the adapters correct.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from axcore.interop.origins import ArraySource, LeafOrigins, Origin
from axcore.interop.weight_map import Shape
from axcore.layers.lora.magnitude import column_lengths

OURS, THEIRS = ".lora_magnitude.change", ".lora_magnitude_vector"


def written(change: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Returns the whole lengths of a weight's columns, `[N]`, from their change."""
    lengths = np.asarray(column_lengths(jnp.asarray(weight)))
    whole: np.ndarray = lengths + np.asarray(change, np.float32)
    return whole


@attrs.frozen
class MagnitudeArrays(ArraySource):
    """Arrays of adapters whose magnitudes are lengths, as those of a model whose are changes.

    Args:
        adapters: Have the lengths.
        base: The arrays of the model that they correct.
    """

    adapters: ArraySource
    base: ArraySource

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """The shapes of all arrays, by name."""
        return self.adapters.shapes

    def described(self, names: Iterable[str]) -> str:
        """Returns where arrays are, for a table."""
        return self.adapters.described(names)

    def check(self, names: Iterable[str]) -> None:
        """Checks arrays, and the weights that magnitudes are of."""
        names = tuple(names)
        self.adapters.check(names)
        self.base.check(_weight_of(name) for name in names if name.endswith(OURS))

    def read(
        self, leaves: Mapping[str, LeafOrigins], wanted: Mapping[str, Any]
    ) -> Iterator[tuple[str, jax.Array]]:
        """Yields leaves; of magnitudes, one weight after another is read, and left again."""
        for name, array in self.adapters.read(leaves, wanted):
            if not name.endswith(OURS):
                yield name, array
                continue
            change = array.astype(jnp.float32)
            for index, origin in leaves[name].items():
                lengths = self._lengths(origin)
                change = change.at[index].add(-lengths) if index else change - lengths
            yield name, jax.device_put(change.astype(array.dtype), array.sharding)

    def _lengths(self, origin: Origin) -> Float[np.ndarray, " N"]:
        weight = _weight_of(origin.source)
        shape = self.base.shapes[weight]
        wanted = jax.ShapeDtypeStruct(shape, jnp.float32)  # type: ignore[no-untyped-call]
        alone: LeafOrigins = {(): Origin(weight, shape)}
        ((_, array),) = self.base.read({weight: alone}, {weight: wanted})
        return np.asarray(column_lengths(array))


def _weight_of(magnitude: str) -> str:
    return f"{magnitude.removesuffix(OURS)}.weight"
