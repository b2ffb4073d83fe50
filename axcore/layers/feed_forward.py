"""Feed-forward layers, gated and plain."""

from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers.activations import Activation, activation_fn
from axcore.layers.linear import Linear
from axcore.layers.remat_presets import FEED_FORWARD_GATE, FEED_FORWARD_UP
from axcore.module import Module, named
from axcore.parallel import shard


class FeedForward(Module):
    """Gated feed-forward: `down(act(gate(x)) * up(x))`.

    Source: Shazeer 2020, arXiv:2002.05202, eq. 6. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["FeedForward"]):
        """Describes a `FeedForward`.

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
        """Builds the three projections."""
        into = {"in_dim": cfg.dim, "out_dim": cfg.hidden_dim, "axes": ("embed", "mlp")}
        self.gate = cfg.linear.build(**into)
        self.up = cfg.linear.build(**into)
        self.down = cfg.linear.build(in_dim=cfg.hidden_dim, out_dim=cfg.dim, axes=("mlp", "embed"))

    def forward(self, x: Float[Array, "batch time dim"]) -> Float[Array, "batch time dim"]:
        """Returns the output for each token on its own."""
        gate, up = named(self.gate(x), FEED_FORWARD_GATE), named(self.up(x), FEED_FORWARD_UP)
        hidden = activation_fn(self.config.activation)(gate) * up
        return self.down(shard(hidden, "batch", "time", "mlp"))


class PlainFeedForward(Module):
    """Feed-forward without a gate: `down(act(up(x)))`.

    Source: Vaswani et al. 2017, arXiv:1706.03762, eq. 2. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["PlainFeedForward"]):
        """Describes a `PlainFeedForward`; its fields are those of `FeedForward`."""

        dim: PositiveInt = REQUIRED
        hidden_dim: PositiveInt = REQUIRED
        activation: Activation = "gelu_tanh"
        linear: Module.Config = Linear.Config()

    def setup(self, cfg: Config) -> None:
        """Builds the two projections."""
        self.up = cfg.linear.build(in_dim=cfg.dim, out_dim=cfg.hidden_dim, axes=("embed", "mlp"))
        self.down = cfg.linear.build(in_dim=cfg.hidden_dim, out_dim=cfg.dim, axes=("mlp", "embed"))

    def forward(self, x: Float[Array, "batch time dim"]) -> Float[Array, "batch time dim"]:
        """Returns the output for each token on its own."""
        hidden = activation_fn(self.config.activation)(named(self.up(x), FEED_FORWARD_UP))
        return self.down(shard(hidden, "batch", "time", "mlp"))
