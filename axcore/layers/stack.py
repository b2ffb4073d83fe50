"""Layers one after the other: `Stack`, unrolled, and `ScannedLayers`, under a scan.

Both give equal numbers from equal keys. A stack compiles in time proportional to its layers and may
hold a different config in each; a scan compiles once for all.
"""

from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, Resumable, config
from axcore.layers.tokens import TokenInfo
from axcore.module import Module, StackedModule

Hidden = Float[Array, "batch time dim"]


class Stack(Module):
    """`num_layers` layers of one config, unrolled. Slot protocol: the parent fills `dim`."""

    layers_in = "layer"

    @config
    class Config(Module.Config["Stack"]):
        """Describes a `Stack`; its fields are those of `ScannedLayers`, but for `unroll`."""

        dim: PositiveInt = REQUIRED
        num_layers: PositiveInt = REQUIRED
        layer: Module.Config = REQUIRED

    def setup(self, cfg: Config) -> None:
        """Builds every layer."""
        self.layer = tuple(cfg.layer.build(dim=cfg.dim) for _ in range(cfg.num_layers))

    def forward(self, x: Hidden, info: TokenInfo) -> Hidden:
        """Returns the input passed through all layers."""
        for layer in self.layer:
            x = layer(x, info)
        return x


class ScannedLayers(Module):
    """`num_layers` layers of one config, scanned. Slot protocol: the parent fills `dim`."""

    layers_in = "layer"

    @config
    class Config(Module.Config["ScannedLayers"]):
        """Describes a `ScannedLayers`.

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
        """Builds one layer with a state for each repetition."""
        self.layer = StackedModule(cfg.layer.build(dim=cfg.dim), cfg.num_layers)

    def forward(self, x: Hidden, info: TokenInfo) -> Hidden:
        """Returns the input passed through all layers."""
        return self.layer.scan(x, info, unroll=self.config.unroll)
