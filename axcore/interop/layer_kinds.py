"""`LayerKinds`: families whose layers are of several kinds, and which layer is of which.

The config map of such a family has one layer of each kind, in `decoder.stack.layers`: globs such as
`**.attention.num_heads` are of all kinds, and `decoder.stack.layers[0]` is the first of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import attrs

from axcore.config import update_config
from axcore.errors import ConfigError
from axcore.interop.config_map import Fields
from axcore.interop.layer_order import arranged, layers_of
from axcore.layers import Sequence

NUM_LAYERS = "num_hidden_layers"


@attrs.frozen
class LayerKinds(ABC):
    """Which layer is of which kind.

    Args:
        names: Of the kinds.
        kind_of: From a layer's config to the number of its kind.
    """

    names: tuple[str, ...]
    kind_of: Callable[[Any], int]

    @abstractmethod
    def read(self, fields: Fields, num_layers: int) -> list[int]:
        """Returns the kind of each layer."""

    @abstractmethod
    def write(self, kinds: list[int]) -> dict[str, Any]:
        """Returns the fields that say so, but for the number of layers."""

    def fold(self, cfg: Any) -> tuple[Any, list[int]]:
        """Returns a model with one layer of each kind, and the kind of each of its layers.

        Raises:
            ConfigError: A kind has no layer, or two that differ.
        """
        layers = layers_of(cfg.decoder.stack)
        kinds = [int(self.kind_of(layer)) for layer in layers]
        one = dict(zip(kinds, layers, strict=True))
        for kind, name in enumerate(self.names):
            if kind not in one:
                raise ConfigError(f"the model has no layer of {name}", where="decoder.stack")
        for i, (kind, layer) in enumerate(zip(kinds, layers, strict=True)):
            if layer != one[kind]:
                raise ConfigError(
                    f"layer {i} is not as the others of {self.names[kind]}", where="decoder.stack"
                )
        return _with_stack(cfg, Sequence.Config(layers=tuple(one[k] for k in sorted(one)))), kinds

    def unfold(self, cfg: Any, fields: Fields) -> Any:
        """Returns a model with as many layers of each kind, and in the order, as fields say."""
        one, kinds = cfg.decoder.stack.layers, self.read(fields, fields.take(NUM_LAYERS))
        return _with_stack(cfg, arranged([one[kind] for kind in kinds]))


@attrs.frozen
class LayerTypes(LayerKinds):
    """The kinds that `layer_types` has a name for in each layer.

    Args:
        default: From the fields to a function that returns a layer's kind, where there is no such
            field.
    """

    default: Callable[[Fields], Callable[[int], int]]

    def read(self, fields: Fields, num_layers: int) -> list[int]:
        """Returns the kind of each layer.

        Raises:
            ConfigError: A kind is unknown, or there is not one for each layer.
        """
        kind_of, named = self.default(fields), fields.take("layer_types", None)
        if named is None:
            return [kind_of(i) for i in range(num_layers)]
        unknown = sorted({str(name) for name in named} - set(self.names))
        if unknown or len(named) != num_layers:
            raise ConfigError(
                f"layer_types has {len(named)} layers, {', '.join(unknown) or 'none'} of them of a "
                f"type that axcore does not know; there are {num_layers}",
                where="layer_types",
                hint=f"name for each layer one of {', '.join(self.names)}",
            )
        return [self.names.index(name) for name in named]

    def write(self, kinds: list[int]) -> dict[str, Any]:
        """Returns `layer_types`."""
        return {"layer_types": [self.names[kind] for kind in kinds]}


def every(period: int, *, kind: int = 1) -> Callable[[int], int]:
    """Returns a function that gives the last of every `period` layers a kind, and others 0."""
    return lambda i: 0 if (i + 1) % period else kind


def _with_stack(cfg: Any, stack: Any) -> Any:
    return update_config(cfg, {"decoder.stack": stack})
