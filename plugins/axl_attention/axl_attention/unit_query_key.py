"""`UnitQueryKey`: queries and keys of length `sqrt(head_dim)`, whatever the projections make."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveFloat, PositiveInt, config
from axcore.layers import RoPE
from axcore.module import Module
from axl_attention.wrapping import refuse_second

Heads = Float[Array, "batch time heads head_dim"]


class UnitQueryKey(Module):
    """Gives queries and keys positions, then divides each head by its root mean square.

    Unlike `QueryKeyNorm` it has no weights, and comes behind the positions.

    Source: Henry et al. 2020, arXiv:2010.04245; behind RoPE as in models/llama4/model.py of Meta's
    llama-models, 2025. Slot protocol: the parent fills `head_dim`.
    """

    @config
    class Config(Module.Config["UnitQueryKey"]):
        """The config of a `UnitQueryKey`.

        Args:
            head_dim: Size of a head.
            epsilon: Added to the mean square.
            inner: The positions.
        """

        head_dim: PositiveInt = REQUIRED
        epsilon: PositiveFloat = 1e-5
        inner: Module.Config = RoPE.Config()

    def setup(self, cfg: Config) -> None:
        """Build the positions."""
        refuse_second(UnitQueryKey, cfg.inner)
        self.inner = cfg.inner.build(head_dim=cfg.head_dim)

    def forward(self, q: Heads, k: Heads, positions: Any) -> tuple[Heads, Heads]:
        """Return queries and keys with positions, normalised in float32, each in its dtype."""
        q, k = self.inner(q, k, positions)
        return self._normed(q), self._normed(k)

    def _normed(self, x: Heads) -> Heads:
        wide = x.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        return (wide * jax.lax.rsqrt(mean_square + self.config.epsilon)).astype(x.dtype)


def in_place_of(old: Any) -> UnitQueryKey.Config:
    """Return the config that takes the place of positions of heads of any length."""
    return UnitQueryKey.Config(inner=old)
