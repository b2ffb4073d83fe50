"""`CrossAttention`: queries of some tokens, keys and values of others; and a layer that has it.

Where the model serves, `CachedCrossAttention` keeps the keys and values of each row's source, made
once, and the tokens of later calls read them.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import attrs
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from axcore.config import REQUIRED, PositiveInt, config, evolve
from axcore.errors import ConfigError, ModuleError
from axcore.layers.attention.self_attention import (
    ATTENTION_KEY,
    ATTENTION_PROJECTED,
    ATTENTION_QUERY,
    ATTENTION_VALUE,
    Attention,
    head_dim_of,
)
from axcore.layers.cache import KVCacheConfig
from axcore.layers.linear import Linear
from axcore.layers.norm import PreNorm
from axcore.layers.tokens import TokenInfo
from axcore.layers.transformer import PlainFeedForward
from axcore.module import Module, Param, entry, named
from axcore.ops import attention, named_heads
from axcore.parallel import shard

CROSS_SOURCE = "cross_source"
"""The shared value from which layers of a decoder make keys and values: a `CrossSource`."""

Tokens = Float[Array, "batch time dim"]
SourceHeads = Float[Array, "batch source heads head_dim"]


@attrs.frozen(kw_only=True)
class SourceKVCacheConfig(KVCacheConfig):
    """The size of the caches of a decoder that attends over an encoder's tokens.

    Args:
        source_length: Tokens of the longest source.
    """

    source_length: int


class CrossSource(NamedTuple):
    """What an encoder made of a row, for the decoder's cross-attention.

    Args:
        tokens: Its vectors, `[batch, source, source_dim]`.
        is_real: Which of them are not padding, `[batch, source]`; None where all are.
    """

    tokens: Float[Array, "batch source source_dim"]
    is_real: Bool[Array, "batch source"] | None = None


class StoredSource(NamedTuple):
    """In the place of a `CrossSource`, where layers keep the keys and values of sources.

    Args:
        slots: Row of the caches that each row of the call has; None where they are the same.
    """

    slots: Int[Array, " batch"] | None = None


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
        return self.mixed(x, *self.keys_and_values(source), is_real)

    @entry
    def keys_and_values(
        self, source: Float[Array, "batch source source_dim"]
    ) -> tuple[SourceHeads, SourceHeads]:
        """Return the keys and values of a source's tokens."""
        k = named_heads(self._split(self.k(source)), ATTENTION_KEY)
        return k, named_heads(self._split(self.v(source)), ATTENTION_VALUE)

    @entry
    def mixed(
        self,
        x: Tokens,
        k: SourceHeads,
        v: SourceHeads,
        is_real: Bool[Array, "batch source"] | None = None,
    ) -> Tokens:
        """Return each token's mixture of the tokens with some keys and values.

        Args:
            x: The tokens that ask.
            k: Keys of the source.
            v: Its values.
            is_real: Which tokens of the source are not padding; None where all are.
        """
        cfg = self.config
        q = named_heads(self._split(self.q(x)), ATTENTION_QUERY)
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


class CachedCrossAttention(Module):
    """A `CrossAttention` that keeps the keys and values of a source for each row.

    `store_source` fills it. Slot protocol: the parent fills `dim` and `source_dim`.
    """

    wraps = "attention"

    @config
    class Config(Module.Config["CachedCrossAttention"]):
        """The config of a `CachedCrossAttention`.

        Args:
            dim: Size of the tokens that ask, and of the output.
            source_dim: Size of the tokens of the source.
            attention: The `CrossAttention`.
            num_rows: Rows of the cache.
            source_length: Tokens of the longest source.
        """

        dim: PositiveInt = REQUIRED
        source_dim: PositiveInt = REQUIRED
        attention: Module.Config = REQUIRED
        num_rows: PositiveInt = REQUIRED
        source_length: PositiveInt = REQUIRED

    def setup(self, cfg: Config) -> None:
        """Build the attention, and declare what is kept."""
        built: Any = cfg.attention.build(dim=cfg.dim, source_dim=cfg.source_dim)
        self.attention = built
        kept = (cfg.num_rows, cfg.source_length)
        heads = (built.config.num_heads, built.head_dim)
        self.keys, self.values = (
            Param(
                (*kept, *heads),
                axes=("batch", None, "heads", None),
                init=0.0,
                is_buffer=True,
                dtype=self.dtypes.compute,
            )
            for _ in range(2)
        )
        self.is_real = Param(
            kept, axes=("batch", None), init=0.0, is_buffer=True, dtype="int32", cast=False
        )

    def forward(self, x: Tokens, slots: Int[Array, " batch"] | None = None) -> Tokens:
        """Return each token's mixture of the tokens of its row's source.

        Args:
            x: The tokens that ask.
            slots: Row of the cache that each row of the call has; None where they are the same.
        """
        k, v, is_real = self.keys, self.values, self.is_real
        if slots is not None:
            # A row of padding has a slot out of range, and reads that of another row.
            k, v, is_real = (jnp.take(one, slots, axis=0, mode="clip") for one in (k, v, is_real))
        mixed: Tokens = self.attention.mixed(x, k, v, is_real > 0)
        return mixed

    @entry
    def store(self, source: CrossSource, slots: Int[Array, " n"]) -> None:
        """Keep the keys and values of sources in some rows; see `store_source`.

        Raises:
            ModuleError: A source has more tokens than a row.
        """
        tokens, is_real = source
        free = self.config.source_length - tokens.shape[1]
        if free < 0:
            raise ModuleError(
                f"a source has {tokens.shape[1]} tokens; the cache takes "
                f"{self.config.source_length}",
                hint="set source_length of the SourceKVCacheConfig",
            )
        if is_real is None:
            is_real = jnp.ones(tokens.shape[:2], bool)
        k, v = self.attention.keys_and_values(tokens)
        for name, new in (("keys", k), ("values", v), ("is_real", is_real)):
            held = getattr(self, name)
            # Rows as a whole, so that nothing of an earlier source is left behind this one.
            padded = jnp.pad(
                new.astype(held.dtype), ((0, 0), (0, free), *((0, 0),) * (new.ndim - 2))
            )
            self.update(name, held.at[slots].set(padded, mode="drop", wrap_negative_indices=False))


def store_source(decoder: Module, source: CrossSource, slots: Int[Array, " n"]) -> None:
    """Keep the keys and values of sources in all layers of a decoder that serves.

    Args:
        decoder: Its layers have `CachedCrossAttention`.
        source: Of some rows.
        slots: Row of the caches that each has; of padding one out of range.
    """
    for layer in _cached_below(decoder):
        layer.store(source, slots)


def _cached_below(module: Any) -> Iterator[CachedCrossAttention]:
    for _, child in module.children():
        if isinstance(child, CachedCrossAttention):
            yield child
        else:
            yield from _cached_below(child)


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

        def for_serving(self, cache_size: KVCacheConfig) -> "CrossTransformerLayer.Config":
            """Return a layer that keeps keys and values of sources.

            Raises:
                ConfigError: The size of caches does not say how long a source is.
            """
            if not isinstance(cache_size, SourceKVCacheConfig):
                raise ConfigError(
                    "a decoder attends over an encoder's tokens, and the size of its caches does "
                    "not say how many there are",
                    where="cache_size",
                    hint="SourceKVCacheConfig(source_length=1500, ...)",
                )
            cached = CachedCrossAttention.Config(
                attention=self.cross_attention,
                num_rows=cache_size.num_rows,
                source_length=cache_size.source_length,
                dtypes=self.cross_attention.dtypes,
            )
            return evolve(self, cross_attention=cached)

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
