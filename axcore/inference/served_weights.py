"""`ServedWeights`: the weights that programs are called with, and the adapters in them."""

import math
from collections.abc import Mapping
from typing import Any

import jax
from jaxtyping import Array

from axcore.errors import EngineError
from axcore.inference.weight_conversion import Names, WeightConversion
from axcore.layers import with_adapter
from axcore.layers.adapters.batched import Factors

AdapterFactors = Mapping[tuple[str, ...], Factors]
"""Factors of an adapter's layers, by their paths."""


class ServedWeights:
    """Weights that can be changed between two calls; not for several threads, but for `check`.

    Args:
        weights: The first ones.
        conversion: What makes them of a state.

    Attributes:
        value: What the model is called with.
    """

    def __init__(self, weights: Any, conversion: WeightConversion) -> None:
        self.value = weights
        self._conversion = conversion

    @property
    def device_bytes(self) -> int:
        """What they take on a device."""
        return sum(
            math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
            for leaf in jax.tree.leaves(self.value)
        )

    def check(self, state: Any) -> None:
        """Checks that another state is of the model.

        Raises:
            ConfigError: Its arrays are of another model, or differ in type.
            ModuleError: One has another shape.
        """
        self._conversion.check(state)

    def replace(self, state: Any) -> None:
        """Takes over a state that was checked; adapters and a draft stay.

        Each array takes the place of the one before it, which is freed if nobody else holds it: so
        there is room for one array besides, and not for all of them twice.

        Raises:
            EngineError: An array could not be converted, after others were.
        """
        try:
            for path, array in self._conversion.arrays(state):
                self.value = _with_leaf(self.value, path, array)
        except Exception as error:
            raise EngineError(
                f"new weights were taken over in part, and then failed: {error}",
                hint="start the engine again",
            ) from error

    def set_adapter(self, number: int, factors: AdapterFactors | None) -> None:
        """Takes over the factors of an adapter, by the paths of layers; None takes it out.

        Raises:
            ModuleError: The model has no such layer, or no room for its rank.
        """
        weights = with_adapter(self.value, number, factors)
        places = jax.tree.map(lambda leaf: leaf.sharding, self.value)
        self.value = jax.device_put(weights, places)


def _with_leaf(tree: Any, path: Names, leaf: Array) -> Any:
    if not path:
        return leaf
    return {**tree, path[0]: _with_leaf(tree[path[0]], path[1:], leaf)}


def abstract(tree: Any) -> Any:
    """Returns shape, type and place of each array."""

    def of_leaf(leaf: Array) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)  # type: ignore[no-untyped-call]

    return jax.tree.map(of_leaf, tree)
