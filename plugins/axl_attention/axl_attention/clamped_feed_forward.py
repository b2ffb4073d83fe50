"""`ClampedFeedForward`: a gated feed-forward whose units cannot grow without bound."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveFloat, PositiveInt, config
from axcore.layers import Linear, shard
from axcore.module import Module


class ClampedFeedForward(Module):
    """`down((up(x) + 1) * gate(x) * sigmoid(slope * gate(x)))`, both clamped before.

    Gates are cut off above `limit`, what they let through on both sides.

    Source: `swiglu` in gpt_oss/torch/model.py of OpenAI's gpt-oss, 2025; the paper,
    arXiv:2508.10925, has no formula. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["ClampedFeedForward"]):
        """The config of a `ClampedFeedForward`.

        Args:
            dim: Size of the last dimension of input and output.
            hidden_dim: Number of hidden units.
            slope: Of the sigmoid.
            limit: What gates are at most, and the others at most in size.
            linear: Used for all three projections.
        """

        dim: PositiveInt = REQUIRED
        hidden_dim: PositiveInt = REQUIRED
        slope: PositiveFloat = 1.702
        limit: PositiveFloat = 7.0
        linear: Module.Config = Linear.Config()

    def setup(self, cfg: Config) -> None:
        """Build the three projections."""
        into = {"in_dim": cfg.dim, "out_dim": cfg.hidden_dim, "axes": ("embed", "mlp")}
        self.gate = cfg.linear.build(**into)
        self.up = cfg.linear.build(**into)
        self.down = cfg.linear.build(in_dim=cfg.hidden_dim, out_dim=cfg.dim, axes=("mlp", "embed"))

    def forward(self, x: Float[Array, "batch time dim"]) -> Float[Array, "batch time dim"]:
        """Return the output for each token on its own."""
        cfg = self.config
        gate = jnp.minimum(self.gate(x), cfg.limit)
        up = jnp.clip(self.up(x), -cfg.limit, cfg.limit)
        hidden = (up + 1) * gate * jax.nn.sigmoid(cfg.slope * gate)
        return self.down(shard(hidden, "batch", "time", "mlp"))
