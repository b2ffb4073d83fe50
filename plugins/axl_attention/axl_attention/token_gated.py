"""`TokenGated`: a feed-forward of which each token takes as much as it needs."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers import Linear
from axcore.module import Module


class TokenGated(Module):
    """`sigmoid(gate(x)) * inner(x)`, with one gate a token; for experts that all tokens share.

    Source: the shared expert of Qwen1.5-MoE, Qwen Team 2024. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["TokenGated"]):
        """The config of a `TokenGated`.

        Args:
            dim: Size of the last dimension of input and output.
            linear: From the token to its gate.
            inner: The feed-forward.
        """

        dim: PositiveInt = REQUIRED
        linear: Module.Config = Linear.Config()
        inner: Module.Config = REQUIRED

    def setup(self, cfg: Config) -> None:
        """Build the gate and the feed-forward."""
        self.gate = cfg.linear.build(in_dim=cfg.dim, out_dim=1, axes=("embed", None))
        self.inner = cfg.inner.build(dim=cfg.dim)

    def forward(self, x: Float[Array, "batch time dim"]) -> Float[Array, "batch time dim"]:
        """Return the output for each token on its own."""
        gate = jax.nn.sigmoid(self.gate(x).astype(jnp.float32)).astype(x.dtype)
        return gate * self.inner(x)


def in_place_of(old: Any) -> TokenGated.Config:
    """Return the config that takes the place of a feed-forward without a gate."""
    return TokenGated.Config(inner=old)
