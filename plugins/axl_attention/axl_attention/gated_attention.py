"""`GatedAttention`: every token says how much of what it has gathered it keeps."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config, evolve
from axcore.layers import Linear, TokenInfo
from axcore.module import Module
from axl_attention.wrapping import refuse_second

GATE = "attention_gate"
"""The shared value with the gates, `[batch, time, width of all heads]`."""


class GatedLinear(Module):
    """Another projection, of its input times the gates.

    Slot protocol: the parent fills `in_dim`, `out_dim` and `axes`.
    """

    @config
    class Config(Module.Config["GatedLinear"]):
        """The config of a `GatedLinear`.

        Args:
            in_dim: Size of the last dimension of the input.
            out_dim: Size of the last dimension of the output.
            axes: Logical axes of the projection's weight, input first.
            linear: The projection.
        """

        in_dim: PositiveInt = REQUIRED
        out_dim: PositiveInt = REQUIRED
        axes: tuple[str | None, str | None] = REQUIRED
        linear: Module.Config = Linear.Config()

    def setup(self, cfg: Config) -> None:
        """Build the projection."""
        refuse_second(GatedLinear, cfg.linear)
        self.linear = cfg.linear.build(in_dim=cfg.in_dim, out_dim=cfg.out_dim, axes=cfg.axes)

    def forward(self, x: Float[Array, "*batch in_dim"]) -> Float[Array, "*batch out_dim"]:
        """Return the projection of what the gates let through, dimension by dimension."""
        return self.linear(x * self.get_shared(GATE))


class GatedAttention(Module):
    """An attention whose heads are multiplied by a sigmoid of the token, before they are projected.

    Source: Qiu et al. 2025, arXiv:2505.06708, section 2.2, at the place that they call G1. Slot
    protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["GatedAttention"]):
        """The config of a `GatedAttention`.

        Args:
            dim: Size of the last dimension of input and output.
            linear: From the token to its gates.
            inner: The attention, whose output projection is a `GatedLinear`.
        """

        dim: PositiveInt = REQUIRED
        linear: Module.Config = Linear.Config()
        inner: Module.Config = REQUIRED

    def setup(self, cfg: Config) -> None:
        """Build the attention and its gates."""
        refuse_second(GatedAttention, cfg.inner)
        self.inner = cfg.inner.build(dim=cfg.dim)
        width = self.inner.out.config.in_dim
        self.gate = cfg.linear.build(in_dim=cfg.dim, out_dim=width, axes=("embed", "heads"))

    def forward(
        self, x: Float[Array, "batch time dim"], info: TokenInfo
    ) -> Float[Array, "batch time dim"]:
        """Return each token's mixture of the tokens that it sees."""
        gate = jax.nn.sigmoid(self.gate(x).astype(jnp.float32)).astype(x.dtype)
        with self.with_shared(GATE, gate):
            mixed: Float[Array, "batch time dim"] = self.inner(x, info)
        return mixed


def with_gates(old: Any) -> GatedAttention.Config:
    """Return the config that takes the place of an attention whose output is not gated."""
    gated = GatedLinear.Config(linear=old.out_linear)
    return GatedAttention.Config(inner=evolve(old, out_linear=gated))
