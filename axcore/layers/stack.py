"""Layers one after the other: `Stack`, unrolled, `ScannedLayers`, under a scan, and `Sequence`.

The first two give equal numbers from equal keys. A stack compiles in time proportional to its
layers; a scan compiles once for all. A `Sequence` holds a different config in each place. It is a
layer itself, so it is the unit that a `ScannedLayers` scans where layers alternate, and it is a
stack, so it contains other stacks where a model begins or ends differently.
"""

from typing import Any

from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, Resumable, config, evolve
from axcore.errors import ConfigError
from axcore.layers.tokens import TokenInfo
from axcore.module import Module, StackedModule

Hidden = Float[Array, "batch time dim"]


class Stack(Module):
    """`num_layers` layers of one config, unrolled. Slot protocol: the parent fills `dim`."""

    layers_in = "layer"

    @config
    class Config(Module.Config["Stack"]):
        """The config of a `Stack`; its fields are those of `ScannedLayers`, but for `unroll`."""

        dim: PositiveInt = REQUIRED
        num_layers: PositiveInt = REQUIRED
        layer: Module.Config = REQUIRED

    def setup(self, cfg: Config) -> None:
        """Build every layer."""
        self.layer = tuple(cfg.layer.build(dim=cfg.dim) for _ in range(cfg.num_layers))

    def forward(self, x: Hidden, info: TokenInfo) -> Hidden:
        """Return the input passed through all layers."""
        for layer in self.layer:
            x = layer(x, info)
        return x


class ScannedLayers(Module):
    """`num_layers` layers of one config, scanned. Slot protocol: the parent fills `dim`."""

    layers_in = "layer"

    @config
    class Config(Module.Config["ScannedLayers"]):
        """The config of a `ScannedLayers`.

        Args:
            dim: Size of the last dimension of input and output.
            num_layers: Number of layers.
            layer: The layer; called with the token info.
            unroll: Layers in one step of the scan. With more the compiler sees across them, and
                takes longer; with all of them there is no loop.
        """

        dim: PositiveInt = REQUIRED
        num_layers: PositiveInt = REQUIRED
        layer: Module.Config = REQUIRED
        unroll: Resumable[PositiveInt] = 1

    def setup(self, cfg: Config) -> None:
        """Build one layer with a state for each repetition."""
        self.layer = StackedModule(cfg.layer.build(dim=cfg.dim), cfg.num_layers)

    def forward(self, x: Hidden, info: TokenInfo) -> Hidden:
        """Return the input passed through all layers."""
        return self.layer.scan(x, info, unroll=self.config.unroll)


class Sequence(Module):
    """Pass tokens through each of its layers in turn. Slot protocol: the parent fills `dim`."""

    layers_in = "layer"

    @config
    class Config(Module.Config["Sequence"]):
        """The config of a `Sequence`.

        Args:
            dim: Size of the last dimension of input and output.
            layers: Layers or stacks, first to last; each is called with the token info.
        """

        dim: PositiveInt = REQUIRED
        layers: tuple[Module.Config, ...] = REQUIRED

    def setup(self, cfg: Config) -> None:
        """Build every layer."""
        if not cfg.layers:
            raise ConfigError("layers is empty", hint="give at least one layer")
        self.layer = tuple(layer.build(dim=cfg.dim) for layer in cfg.layers)

    def forward(self, x: Hidden, info: TokenInfo) -> Hidden:
        """Return the input passed through all layers."""
        for layer in self.layer:
            x = layer(x, info)
        return x


def alternating(stack: Any, *layers: Module.Config) -> Any:
    """Return a stack whose layers take turns: the first, the second, ..., and again the first.

    Args:
        stack: The config of a `ScannedLayers` or `Stack`; its `num_layers` counts single layers,
            that of the result counts turns.
        *layers: The layers of one turn; a stack among them counts as the layers that it has.

    Raises:
        ConfigError: The turns do not divide the layers.
    """
    num_in_turn = sum(getattr(layer, "num_layers", 1) for layer in layers)
    if not layers or stack.num_layers % num_in_turn:
        raise ConfigError(
            f"num_layers is {stack.num_layers}, not a multiple of the {num_in_turn} layers that "
            "alternate",
            hint="change one of them, or put the layers that are left over into a stack of their "
            "own: Sequence.Config(layers=(alternating(...), stack))",
        )
    return evolve(
        stack,
        num_layers=stack.num_layers // num_in_turn,
        layer=Sequence.Config(layers=layers),
    )
