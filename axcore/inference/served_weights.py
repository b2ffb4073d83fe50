"""`ServedWeights`: the weights that programs are called with, and the adapters in them."""

from collections.abc import Mapping
from typing import Any

import jax
from jaxtyping import Array

from axcore.errors import ConfigError
from axcore.inference.drafted_model import AnyCachedModel
from axcore.layers import with_adapter
from axcore.layers.lora.batched import Factors

AdapterFactors = Mapping[tuple[str, ...], Factors]
"""Factors of an adapter's layers, by their paths."""


class ServedWeights:
    """Weights that can be changed between two calls; not for several threads, but for `converted`.

    Args:
        model: The model that they are of.

    Attributes:
        value: What the model is called with.
    """

    def __init__(self, model: AnyCachedModel) -> None:
        self.value = model.weights
        self._model = model
        self._adapters: dict[int, AdapterFactors] = {}

    def converted(self, state: Any) -> Any:
        """Returns weights made of another state of the model.

        Raises:
            ConfigError: Its arrays are not those of the model.
            ModuleError: One is missing, or has another shape.
        """
        weights = self._model.weights_of(state)
        if abstract(weights) != abstract(self.value):
            raise ConfigError(
                "the arrays differ in shape, type or place from those that the programs are made "
                "for",
                hint="give a state of the same model",
            )
        return weights

    def replace(self, weights: Any) -> None:
        """Takes over weights that `converted` returned; adapters stay."""
        for number, factors in self._adapters.items():
            weights = with_adapter(weights, number, factors)
        self._place(weights)

    def set_adapter(self, number: int, factors: AdapterFactors | None) -> None:
        """Takes over the factors of an adapter, by the paths of layers; None takes it out.

        Raises:
            ModuleError: The model has no such layer, or no room for its rank.
        """
        self._place(with_adapter(self.value, number, factors))
        self._adapters.pop(number, None)
        if factors is not None:
            self._adapters[number] = factors

    def _place(self, weights: Any) -> None:
        self.value = jax.device_put(weights, jax.tree.map(lambda leaf: leaf.sharding, self.value))


def abstract(tree: Any) -> Any:
    """Returns shape, type and place of each array."""

    def of_leaf(leaf: Array) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)  # type: ignore[no-untyped-call]

    return jax.tree.map(of_leaf, tree)
