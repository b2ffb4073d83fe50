"""`CausalConv`: each channel convolved over the last few tokens, by itself."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers import NoStateCache, TokenInfo
from axcore.module import Module, Normal, Param

OUTSIDE = -1
"""The segment before the first token; no token is of it."""


class CausalConv(Module):
    """`y[t] = sum of weight[i] * x[t - width + 1 + i]`, over tokens of the same document.

    Slot protocol: the parent fills `dim` and `axis`.
    """

    @config
    class Config(Module.Config["CausalConv"]):
        """The config of a `CausalConv`.

        Args:
            dim: Number of channels.
            axis: Logical axis of the channels.
            width: Number of tokens that each token sees, itself counted.
            has_bias: Whether a bias is added.
            state_cache: Keeps the last tokens of each row where the model serves.
        """

        dim: PositiveInt = REQUIRED
        axis: str | None = REQUIRED
        width: PositiveInt = 4
        has_bias: bool = True
        state_cache: Module.Config = NoStateCache.Config()

    def setup(self, cfg: Config) -> None:
        """Declare the weights, the last of which is a token's own, and the bias."""
        init = Normal(std=(3 * cfg.width) ** -0.5)
        self.weight = Param((cfg.dim, cfg.width), axes=(cfg.axis, None), init=init)
        if cfg.has_bias:
            self.bias = Param((cfg.dim,), axes=(cfg.axis,), init=0.0)
        self.state_cache = cfg.state_cache.build(shape=(cfg.width - 1, cfg.dim))

    def forward(
        self, x: Float[Array, "batch time dim"], info: TokenInfo
    ) -> Float[Array, "batch time dim"]:
        """Return the convolved channels in the input's dtype; sums are float32."""
        width, weight = self.config.width, self.weight.astype(jnp.float32)
        total = jnp.zeros(x.shape, jnp.float32)
        known = jnp.concatenate([self.state_cache.before(info, x.dtype), x], axis=1)
        for i in range(width):
            total += _earlier(known, info, width - 1 - i) * weight[None, None, :, i]
        last = info.num_new()[:, None] + jnp.arange(width - 1, dtype=jnp.int32)[None, :]
        self.state_cache.after(jnp.take_along_axis(known, last[:, :, None], axis=1), info)
        if self.config.has_bias:
            total += self.bias.astype(jnp.float32)[None, None]
        return total.astype(x.dtype)


def _earlier(
    known: Float[Array, "batch known dim"], info: TokenInfo, distance: int
) -> Float[Array, "batch time dim"]:
    """Return what is so many tokens before each, in float32, or 0 outside of its document.

    Args:
        known: The tokens, behind those that came before them.
        info: Of the tokens.
        distance: How many tokens before.
    """
    time = info.positions.shape[1]
    first = known.shape[1] - time - distance
    seen = known[:, first : first + time].astype(jnp.float32)
    if info.segment_ids is None or info.num_cached is not None:
        return seen
    before = jnp.pad(info.segment_ids, ((0, 0), (distance, 0)), constant_values=OUTSIDE)
    return jnp.where((before[:, :time] == info.segment_ids)[:, :, None], seen, 0.0)
