"""`CrossAttention`: queries of some tokens, keys and values of others; and a layer that has it."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ModuleError
from axcore.layers.attention.self_attention import (
    ATTENTION_KEY,
    ATTENTION_PROJECTED,
    ATTENTION_QUERY,
    ATTENTION_VALUE,
    Attention,
    head_dim_of,
)
from axcore.layers.linear import Linear
from axcore.layers.norm import PreNorm
from axcore.layers.tokens import TokenInfo
from axcore.layers.transformer import PlainFeedForward
from axcore.module import Module, named
from axcore.ops import attention, named_heads
from axcore.parallel import shard

CROSS_SOURCE = "cross_source"
"""The shared value from which layers of a decoder make keys and values: a `CrossSource`."""

Tokens = Float[Array, "batch time dim"]


class CrossSource(NamedTuple):
    """What an encoder made of a row, for the decoder's cross-attention.

    Args:
        tokens: Its vectors, `[batch, source, source_dim]`.
        is_real: Which of them are not padding, `[batch, source]`; None where all are.
    """

    tokens: Float[Array, "batch source source_dim"]
    is_real: Bool[Array, "batch source"] | None = None


class CrossAttention(Module):
    """Each token's mixture of the tokens of a source.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3. Slot protocol: the parent fills
    `dim` and `source_dim`.
    """

    @config
    class Config(Module.Config["CrossAttention"]):
        """The config of a `CrossAttention`.

        Args:
            dim: Size of the tokens that ask, and of the output.
            source_dim: Size of the tokens of the source.
            num_heads: Number of heads.
            head_dim: Size of a head; `dim / num_heads` where None.
            linear: Used for the query, key and value projections.
            key_linear: Used for the key projection; `linear` where None.
            out_linear: Used for the output projection.
            scale: Factor on the products; by default `1 / sqrt(head_dim)`.
            soft_cap: Caps logits smoothly at this value.
        """

        dim: PositiveInt = REQUIRED
        source_dim: PositiveInt = REQUIRED
        num_heads: PositiveInt = REQUIRED
        head_dim: PositiveInt | None = None
        linear: Module.Config = Linear.Config()
        key_linear: Module.Config | None = None
        out_linear: Module.Config = Linear.Config()
        scale: float | None = None
        soft_cap: float | None = None

    def setup(self, cfg: Config) -> None:
        """Build the projections."""
        self.head_dim = cfg.head_dim or head_dim_of(cfg.dim, cfg.num_heads)
        heads = cfg.num_heads * self.head_dim
        source = {"in_dim": cfg.source_dim, "out_dim": heads, "axes": ("embed", "heads")}
        self.q = cfg.linear.build(in_dim=cfg.dim, out_dim=heads, axes=("embed", "heads"))
        self.k = (cfg.key_linear or cfg.linear).build(**source)
        self.v = cfg.linear.build(**source)
        self.out = cfg.out_linear.build(in_dim=heads, out_dim=cfg.dim, axes=("heads", "embed"))

    def forward(
        self,
        x: Tokens,
        source: Float[Array, "batch source source_dim"],
        is_real: Bool[Array, "batch source"] | None = None,
    ) -> Tokens:
        """Return each token's mixture of the source's tokens.

        Args:
            x: The tokens that ask.
            source: What they attend over.
            is_real: Which tokens of the source are not padding; None where all are.
        """
        cfg = self.config
        q = named_heads(self._split(self.q(x)), ATTENTION_QUERY)
        k = named_heads(self._split(self.k(source)), ATTENTION_KEY)
        v = named_heads(self._split(self.v(source)), ATTENTION_VALUE)
        segments = None
        if is_real is not None:
            # Of one segment with the real ones: what asks attends over no padding.
            asking = jnp.ones(x.shape[:2], jnp.int32)
            segments = (asking, is_real.astype(jnp.int32))
        mixed = attention(
            q,
            k,
            v,
            causal=False,
            segment_ids=segments,
            scale=cfg.scale,
            soft_cap=cfg.soft_cap,
        )
        return named(self.out(mixed.reshape(*x.shape[:2], -1)), ATTENTION_PROJECTED)

    def _split(self, x: Tokens) -> Float[Array, "batch time heads head_dim"]:
        x = shard(x, "batch", "time", "heads")
        return x.reshape(*x.shape[:2], -1, self.head_dim)


class CrossTransformerLayer(Module):
    """A layer of a decoder: self-attention, attention over an encoder's tokens, a feed-forward.

    What it attends over is the shared value `CROSS_SOURCE`, which the model sets around its stack:
    `self.set_shared(CROSS_SOURCE, CrossSource(tokens, is_real))`. Slot protocol: the parent fills
    `dim`.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1.
    """

    @config
    class Config(Module.Config["CrossTransformerLayer"]):
        """The config of a `CrossTransformerLayer`.

        Args:
            dim: Size of the last dimension of input and output.
            source_dim: Size of the encoder's tokens; `dim` where None.
            attention: Mixes tokens; called with the token info.
            cross_attention: Mixes in the encoder's tokens.
            feed_forward: Works on each token.
            residual: Wraps each of the three, and decides where the norm is.
        """

        dim: PositiveInt = REQUIRED
        source_dim: PositiveInt | None = None
        attention: Module.Config = Attention.Config()
        cross_attention: Module.Config = CrossAttention.Config()
        feed_forward: Module.Config = PlainFeedForward.Config()
        residual: Module.Config = PreNorm.Config()

    def setup(self, cfg: Config) -> None:
        """Build the three branches and their residual connections."""
        self.attention = cfg.attention.build(dim=cfg.dim)
        self.cross_attention = cfg.cross_attention.build(
            dim=cfg.dim, source_dim=cfg.source_dim or cfg.dim
        )
        self.feed_forward = cfg.feed_forward.build(dim=cfg.dim)
        self.attention_residual = cfg.residual.build(dim=cfg.dim)
        self.cross_residual = cfg.residual.build(dim=cfg.dim)
        self.feed_forward_residual = cfg.residual.build(dim=cfg.dim)

    def forward(self, x: Tokens, info: TokenInfo) -> Tokens:
        """Return the tokens after the three branches.

        Raises:
            ModuleError: Nothing around the layer gave it tokens of an encoder.
        """
        source = self.get_shared(CROSS_SOURCE)
        if source is None:
            raise ModuleError(
                "a layer with cross-attention runs without an encoder's tokens",
                hint="set them around the stack: self.set_shared(CROSS_SOURCE, "
                "CrossSource(tokens, is_real))",
            )
        x = self.attention_residual(x, lambda normed: self.attention(normed, info))
        x = self.cross_residual(x, lambda normed: self.cross_attention(normed, *source))
        x = self.feed_forward_residual(x, self.feed_forward)
        return shard(x, "batch", "time", "embed")
