"""From the tokens of a row to one vector: `FirstToken`, `MeanPool`, `AttentionPool`.

Each is called with tokens and, where some of them are padding, which are not.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers.attention.cross_attention import CrossAttention
from axcore.layers.norm import LayerNorm
from axcore.layers.transformer import PlainFeedForward
from axcore.module import Module, Normal, Param

Tokens = Float[Array, "batch time dim"]
IsReal = Bool[Array, "batch time"]
Vector = Float[Array, "batch dim"]


class Pool(Module):
    """One vector of a row's tokens; abstract. Slot protocol: the parent fills `dim`."""

    @config
    class Config(Module.Config["Pool"]):
        """The config of a pool."""

        dim: PositiveInt = REQUIRED

    def forward(self, x: Tokens, is_real: IsReal | None = None) -> Vector:
        """Return a vector for each row."""
        raise NotImplementedError(f"{type(self).__qualname__} does not pool")


class FirstToken(Pool):
    """The first token, which models with a class token have there."""

    def forward(self, x: Tokens, is_real: IsReal | None = None) -> Vector:
        """Return the first token of each row."""
        return x[:, 0]


class LastToken(Pool):
    """The last token that is not padding, which has seen all others where attention is causal."""

    def forward(self, x: Tokens, is_real: IsReal | None = None) -> Vector:
        """Return the last token of each row; the first one of a row of padding."""
        if is_real is None:
            return x[:, -1]
        last = jnp.maximum(jnp.sum(is_real, axis=1) - 1, 0)
        return jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]


class MeanPool(Pool):
    """The mean of the tokens that are not padding."""

    def forward(self, x: Tokens, is_real: IsReal | None = None) -> Vector:
        """Return the mean of each row; zeros for a row of padding."""
        if is_real is None:
            return jnp.mean(x, axis=1, dtype=jnp.float32).astype(x.dtype)
        total = jnp.sum(jnp.where(is_real[..., None], x, 0), axis=1, dtype=jnp.float32)
        count = jnp.maximum(jnp.sum(is_real, axis=1, dtype=jnp.float32), 1)
        return (total / count[:, None]).astype(x.dtype)


class AttentionPool(Pool):
    """A learned query that attends over the tokens, then a feed-forward with a residual.

    Source: Zhai et al. 2022, arXiv:2106.04560, section 2.4 (multi-head attention pooling).
    """

    @config
    class Config(Pool.Config):
        """The config of an `AttentionPool`.

        Args:
            attention: Called with the query and the tokens.
            norm: Before the feed-forward.
            feed_forward: Works on the vector.
        """

        attention: Module.Config = CrossAttention.Config()
        norm: Module.Config = LayerNorm.Config()
        feed_forward: Module.Config = PlainFeedForward.Config()

    def setup(self, cfg: Config) -> None:
        """Declare the query, and build the layers."""
        self.query = Param((cfg.dim,), axes=("embed",), init=Normal(std=0.02), decay=False)
        self.attention = cfg.attention.build(dim=cfg.dim, source_dim=cfg.dim)
        self.norm = cfg.norm.build(dim=cfg.dim)
        self.feed_forward = cfg.feed_forward.build(dim=cfg.dim)

    def forward(self, x: Tokens, is_real: IsReal | None = None) -> Vector:
        """Return what the query finds in each row."""
        query = jnp.broadcast_to(self.query.astype(x.dtype), (x.shape[0], 1, x.shape[2]))
        found = self.attention(query, x, is_real)
        return (found + self.feed_forward(self.norm(found)))[:, 0]
