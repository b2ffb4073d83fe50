"""`TransformerLayer`, the feed-forward layers in it, and layers one after the other.

`Stack` is unrolled, `ScannedLayers` runs under a scan; they give equal numbers from equal keys. A
stack compiles in time proportional to its layers; a scan compiles once for all. A `Sequence` holds
a different config in each place. It is a layer itself, so it is the unit that a `ScannedLayers`
scans where layers alternate, and it is a stack, so it contains other stacks where a model begins or
ends differently.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, Resumable, config, evolve
from axcore.errors import ConfigError
from axcore.layers.attention.self_attention import Attention
from axcore.layers.linear import Linear
from axcore.layers.norm import PreNorm
from axcore.layers.tokens import TokenInfo
from axcore.module import Module, StackedModule, named
from axcore.parallel import shard

FEED_FORWARD_GATE = "feed_forward_gate"
FEED_FORWARD_UP = "feed_forward_up"
"""Names of values that a `Remat` config can keep for the backward pass."""

Activation = Literal["silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "squared_relu", "tanh"]


def activation_fn(name: Activation) -> Callable[[Array], Array]:
    """Return the function of that name.

    Source: silu, Elfwing et al. 2017, arXiv:1702.03118; gelu, Hendrycks and Gimpel 2016,
    arXiv:1606.08415, with quick_gelu in section 2; squared_relu, So et al. 2021, arXiv:2109.08668.
    """
    functions: dict[str, Callable[[Array], Array]] = {
        "silu": jax.nn.silu,
        "gelu": lambda x: jax.nn.gelu(x, approximate=False),
        "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
        "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
        "relu": jax.nn.relu,
        "squared_relu": lambda x: jnp.square(jax.nn.relu(x)),
        "tanh": jnp.tanh,
    }
    return functions[name]


class FeedForward(Module):
    """Gated feed-forward: `down(act(gate(x)) * up(x))`.

    Source: Shazeer 2020, arXiv:2002.05202, eq. 6. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["FeedForward"]):
        """The config of a `FeedForward`.

        Args:
            dim: Size of the last dimension of input and output.
            hidden_dim: Number of hidden units.
            activation: Applied to the gate.
            linear: Used for all three projections.
        """

        dim: PositiveInt = REQUIRED
        hidden_dim: PositiveInt = REQUIRED
        activation: Activation = "silu"
        linear: Module.Config = Linear.Config()

    def setup(self, cfg: Config) -> None:
        """Build the three projections."""
        into = {"in_dim": cfg.dim, "out_dim": cfg.hidden_dim, "axes": ("embed", "mlp")}
        self.gate = cfg.linear.build(**into)
        self.up = cfg.linear.build(**into)
        self.down = cfg.linear.build(in_dim=cfg.hidden_dim, out_dim=cfg.dim, axes=("mlp", "embed"))

    def forward(self, x: Float[Array, "batch time dim"]) -> Float[Array, "batch time dim"]:
        """Return the output for each token on its own."""
        gate, up = named(self.gate(x), FEED_FORWARD_GATE), named(self.up(x), FEED_FORWARD_UP)
        hidden = activation_fn(self.config.activation)(gate) * up
        return self.down(shard(hidden, "batch", "time", "mlp"))


class PlainFeedForward(Module):
    """Feed-forward without a gate: `down(act(up(x)))`.

    Source: Vaswani et al. 2017, arXiv:1706.03762, eq. 2. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["PlainFeedForward"]):
        """The config of a `PlainFeedForward`; its fields are those of `FeedForward`."""

        dim: PositiveInt = REQUIRED
        hidden_dim: PositiveInt = REQUIRED
        activation: Activation = "gelu_tanh"
        linear: Module.Config = Linear.Config()

    def setup(self, cfg: Config) -> None:
        """Build the two projections."""
        self.up = cfg.linear.build(in_dim=cfg.dim, out_dim=cfg.hidden_dim, axes=("embed", "mlp"))
        self.down = cfg.linear.build(in_dim=cfg.hidden_dim, out_dim=cfg.dim, axes=("mlp", "embed"))

    def forward(self, x: Float[Array, "batch time dim"]) -> Float[Array, "batch time dim"]:
        """Return the output for each token on its own."""
        hidden = activation_fn(self.config.activation)(named(self.up(x), FEED_FORWARD_UP))
        return self.down(shard(hidden, "batch", "time", "mlp"))


class TransformerLayer(Module):
    """Attention across tokens, then a feed-forward on each.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1. Slot protocol: the parent fills
    `dim`.
    """

    @config
    class Config(Module.Config["TransformerLayer"]):
        """The config of a `TransformerLayer`.

        Args:
            dim: Size of the last dimension of input and output.
            attention: Mixes tokens; called with the token info.
            feed_forward: Works on each token.
            residual: Wraps each of the two, and decides where the norm is.
        """

        dim: PositiveInt = REQUIRED
        attention: Module.Config = Attention.Config()
        feed_forward: Module.Config = FeedForward.Config()
        residual: Module.Config = PreNorm.Config()

    def setup(self, cfg: Config) -> None:
        """Build the two branches and their residual connections."""
        self.attention = cfg.attention.build(dim=cfg.dim)
        self.feed_forward = cfg.feed_forward.build(dim=cfg.dim)
        self.attention_residual = cfg.residual.build(dim=cfg.dim)
        self.feed_forward_residual = cfg.residual.build(dim=cfg.dim)

    def forward(
        self, x: Float[Array, "batch time dim"], info: TokenInfo
    ) -> Float[Array, "batch time dim"]:
        """Return the tokens after both branches."""
        x = self.attention_residual(x, lambda normed: self.attention(normed, info))
        x = self.feed_forward_residual(x, self.feed_forward)
        return shard(x, "batch", "time", "embed")


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
