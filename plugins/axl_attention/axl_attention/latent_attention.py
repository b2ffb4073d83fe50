"""`LatentAttention`: keys and values of all heads made from one short vector a token.

Where a model serves, the cache keeps that latent, not the keys made from it. A head's logit is
`q . (W latent)`, which is `(W^T q) . latent`: the key projection moves to the queries, and in the
same way the value projection to what is mixed. All heads then have one key in common, the latent
with the part that has a position behind it, and it is the value, too.

A bias is a row of the matrix for a latent that is always 1, and is kept as such.

Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1.2 and appendix C.

Letters of shapes: B rows, T tokens, N heads, H a head's own dimensions, L latent, R shared ones.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config, evolve, find_config, map_config
from axcore.errors import ConfigError
from axcore.layers import (
    ATTENTION_KEY,
    ATTENTION_PROJECTED,
    ATTENTION_QUERY,
    ATTENTION_VALUE,
    BatchedLoRALinear,
    DotProductAttention,
    KVCacheConfig,
    Linear,
    NoCache,
    PlainDot,
    RMSNorm,
    RoPE,
    TokenInfo,
    shard,
)
from axcore.module import Module, named

Hidden = Float[Array, "batch time dim"]


class Parts(NamedTuple):
    """What keys and queries are made of.

    Args:
        own_q: Queries of each head's own dimensions.
        shared_q: Queries of the dimensions with position, which all heads share.
        shared_k: Keys of these.
        latent: What each head's own keys and values are made from.
    """

    own_q: Float[Array, "batch time heads head_dim"]
    shared_q: Float[Array, "batch time heads rope_dim"]
    shared_k: Float[Array, "batch time 1 rope_dim"]
    latent: Hidden


class LatentAttention(Module):
    """Multi-head latent attention. Keys and values are made in full where it trains.

    Where it serves, it keeps the latents, and moves the projections of keys and values to queries
    and results. Projections that are more than a product with a matrix and a bias stay where they
    are, and keys and values are then kept in full.

    A head's key is `head_dim` dimensions of its own, without position, and `rope_dim` dimensions
    with position that all heads share. Sizes that are not given are DeepSeek-V2's proportions.

    Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1. Slot protocol: the parent fills `dim`.
    Differs: RoPE pairs `i` with `i + rope_dim / 2`, where DeepSeek pairs neighbours; a permutation
    of the two projections' columns.
    """

    @config
    class Config(Module.Config["LatentAttention"]):
        """The config of a `LatentAttention`.

        Args:
            dim: Size of the last dimension of input and output.
            num_heads: Number of heads.
            head_dim: Size of a head without its position; `dim / num_heads` where None.
            rope_dim: Size of the part with position; half of `head_dim` where None.
            value_dim: Size of a head's value; `head_dim` where None.
            latent_dim: Size of what keys and values are made from; 4 `head_dim` where None.
            query_latent_dim: Size of what queries are made from; the input itself where None.
            norm: Normalises both latent vectors.
            linear: Used for all projections but the last.
            value_linear: Used for the value projection; `linear` where None.
            out_linear: Used for the output projection.
            position: Applied to the parts with position.
            core: Weighs values by queries and keys.
            kv_cache: Keeps latents, or keys and values, where the model serves.
            keeps_latents: Whether the latents are what it keeps.
        """

        dim: PositiveInt = REQUIRED
        num_heads: PositiveInt = REQUIRED
        head_dim: PositiveInt | None = None
        rope_dim: PositiveInt | None = None
        value_dim: PositiveInt | None = None
        latent_dim: PositiveInt | None = None
        query_latent_dim: PositiveInt | None = None
        norm: Module.Config = RMSNorm.Config()
        linear: Module.Config = Linear.Config()
        value_linear: Module.Config | None = None
        out_linear: Module.Config = Linear.Config()
        position: Module.Config = RoPE.Config()
        core: Module.Config = DotProductAttention.Config()
        kv_cache: Module.Config = NoCache.Config()
        keeps_latents: bool = False

        def for_serving(self, cache_size: KVCacheConfig) -> "LatentAttention.Config":
            """Return the form that keeps latents."""
            moved = _can_move(self.linear) and _can_move(self.value_linear or self.linear)
            return evolve(self, keeps_latents=moved)

    def setup(self, cfg: Config) -> None:
        """Build projections, norms, positions and core."""
        head_dim = cfg.head_dim or _head_dim(cfg)
        self.rope_dim = cfg.rope_dim or head_dim // 2
        self._build_queries(cfg, head_dim + self.rope_dim)
        # Weights are stored split along `embed`; what goes into a second projection takes the name
        # too, so that the widest matrices are split over all devices.
        latent_dim, heads = cfg.latent_dim or 4 * head_dim, ("embed", "heads")
        value_width = cfg.num_heads * (cfg.value_dim or head_dim)
        self.attention_width = (cfg.num_heads * (head_dim + self.rope_dim) + value_width) // 2
        self.latent = cfg.linear.build(in_dim=cfg.dim, out_dim=latent_dim, axes=("embed", None))
        self.latent_norm = cfg.norm.build(dim=latent_dim)
        self.k = cfg.linear.build(in_dim=latent_dim, out_dim=cfg.num_heads * head_dim, axes=heads)
        self.v = (cfg.value_linear or cfg.linear).build(
            in_dim=latent_dim, out_dim=value_width, axes=heads
        )
        self.shared_k = cfg.linear.build(
            in_dim=cfg.dim, out_dim=self.rope_dim, axes=("embed", None)
        )
        self.out = cfg.out_linear.build(
            in_dim=value_width, out_dim=cfg.dim, axes=("heads", "embed")
        )
        self.position = cfg.position.build(head_dim=self.rope_dim)
        has_unit = has_bias(cfg.linear) or has_bias(cfg.value_linear or cfg.linear)
        self.form = _LatentForm(latent_dim, has_unit)
        self._build_core(cfg, head_dim)

    def _build_core(self, cfg: Config, head_dim: int) -> None:
        width, value_dim = head_dim + self.rope_dim, cfg.value_dim or head_dim
        # Moved queries are wider, and a core divides by the root of the width that it sees.
        core = _with_scale(cfg.core, width) if cfg.keeps_latents else cfg.core
        self.core = core.build(num_heads=cfg.num_heads)
        kept: dict[str, Any] = {
            "num_kv_heads": cfg.num_heads,
            "head_dim": width,
            "value_dim": value_dim,
        }
        if cfg.keeps_latents:
            kept = {
                "num_kv_heads": 1,
                "head_dim": self.form.size + self.rope_dim,
                "value_dim": None,
            }
        self.kv_cache = cfg.kv_cache.build(**kept)

    def _build_queries(self, cfg: Config, width: int) -> None:
        rank = cfg.query_latent_dim
        if rank:
            self.query_latent = cfg.linear.build(in_dim=cfg.dim, out_dim=rank, axes=("embed", None))
            self.query_norm = cfg.norm.build(dim=rank)
        self.q = cfg.linear.build(
            in_dim=rank or cfg.dim, out_dim=cfg.num_heads * width, axes=("embed", "heads")
        )

    def forward(self, x: Hidden, info: TokenInfo) -> Hidden:
        """Return each token's mixture of the tokens that it sees."""
        latent, of_queries = self.latent_norm(self.latent(x)), self._query_input(x)
        q = self._split(self.q(of_queries))
        own_q, shared_q = q[..., : -self.rope_dim], q[..., -self.rope_dim :]
        shared_k = self.shared_k(x)[:, :, None, :]
        shared_q, shared_k = self.position(shared_q, shared_k, info.positions)
        mix = self._from_latents if self.config.keeps_latents else self._in_full
        options = self.core_options(x, of_queries, info)
        mixed = mix(Parts(own_q, shared_q, shared_k, latent), info, **options)
        return named(self.out(mixed), ATTENTION_PROJECTED)

    def core_options(self, x: Hidden, of_queries: Hidden, info: TokenInfo) -> dict[str, Any]:
        """Return more arguments of the core: none, but in a subclass.

        Args:
            x: The layer's input.
            of_queries: What queries are made of.
            info: Of the tokens.
        """
        return {}

    def _in_full(self, parts: "Parts", info: TokenInfo, **options: Any) -> Hidden:
        own_k, v = self._split(self.k(parts.latent)), self._split(self.v(parts.latent))
        shared_k = jnp.broadcast_to(parts.shared_k, (*own_k.shape[:3], self.rope_dim))
        q = named(jnp.concatenate([parts.own_q, parts.shared_q], axis=-1), ATTENTION_QUERY)
        k = named(jnp.concatenate([own_k, shared_k], axis=-1), ATTENTION_KEY)
        k, v, info = self.kv_cache(k, named(v, ATTENTION_VALUE), info)
        mixed = self.core(q, k, v, info, **options)
        return mixed.reshape(*mixed.shape[:2], -1)

    def _from_latents(self, parts: "Parts", info: TokenInfo, **options: Any) -> Hidden:
        own_q = _moved_queries(parts.own_q, self.k, self.form)
        q = jnp.concatenate([own_q, parts.shared_q], axis=-1)
        k = jnp.concatenate([self.form.of(parts.latent)[:, :, None], parts.shared_k], axis=-1)
        # One head that is key and value: the cache has `value_dim=None`, and keeps it once.
        k, v, info = self.kv_cache(k, k, info)
        return _moved_values(self.core(q, k, v, info, **options), self.v, self.form)

    def _query_input(self, x: Hidden) -> Hidden:
        return self.query_norm(self.query_latent(x)) if self.config.query_latent_dim else x

    def _split(self, x: Hidden) -> Float[Array, "batch time heads head_dim"]:
        heads = x.reshape(*x.shape[:2], self.config.num_heads, -1)
        return shard(heads, "batch", "time", "heads", None)


def _head_dim(cfg: LatentAttention.Config) -> int:
    if cfg.dim % cfg.num_heads:
        raise ConfigError(
            f"dim is {cfg.dim}, not a multiple of num_heads, {cfg.num_heads}",
            hint="change one of them, or set head_dim",
        )
    return int(cfg.dim // cfg.num_heads)


def with_latent_attention(old: Any) -> LatentAttention.Config:
    """Return the config that takes the place of attention with keys and values of its own.

    Raises:
        ConfigError: The keys come from elsewhere.
    """
    if old.key_linear is not None:
        raise ConfigError(
            "keys have a projection of their own, for which latent attention has no place",
            hint="set key_linear to None, or keep this attention",
        )
    return LatentAttention.Config(
        num_heads=old.num_heads,
        head_dim=old.head_dim,
        linear=old.linear,
        value_linear=old.value_linear,
        out_linear=old.out_linear,
        position=old.position,
        core=old.core,
    )


Heads = Float[Array, "batch time heads size"]


class _LatentForm(NamedTuple):
    """What is kept of a token in addition to the shared dimensions.

    Args:
        dim: L, size of the latent.
        has_unit: Whether a 1 follows it, because a projection has a bias.
    """

    dim: int
    has_unit: bool

    @property
    def size(self) -> int:
        """How many numbers it is."""
        return self.dim + self.has_unit

    def of(self, latent: Float[Array, "*batch latent"]) -> Float[Array, "*batch kept"]:
        """Return latents as the cache keeps them."""
        unit = jnp.ones((*latent.shape[:-1], int(self.has_unit)), latent.dtype)
        return jnp.concatenate([latent, unit], axis=-1)


def _can_move(linear: Any) -> bool:
    """Whether a projection is a product with one matrix, and perhaps a bias."""
    return type(linear) is Linear.Config and isinstance(linear.dot, PlainDot.Config)


def has_bias(linear: Any) -> bool:
    """Whether a projection, or one inside of it, has a bias."""
    return bool(find_config(linear, lambda node: getattr(node, "has_bias", False)))


def _with_scale(core: Any, head_dim: int) -> Any:
    """Return a core that divides by the root of what a query's width was before it was moved."""
    return map_config(
        core,
        lambda node: (
            evolve(node, scale=head_dim**-0.5) if getattr(node, "scale", 0) is None else node
        ),
    )


def _moved_queries(q: Heads, k: Any, form: _LatentForm) -> Heads:
    """Return queries of latents, `[B, T, N, L]`, from queries `[B, T, N, H]` of keys.

    Args:
        q: The queries, without those of the shared part.
        k: The projection from latents to the keys of all heads.
        form: Of the latents.
    """
    return _through("btnh,{}lnh->btnl", q, k, form)


def _moved_values(mixed: Heads, v: Any, form: _LatentForm) -> Float[Array, "batch time width"]:
    """Return the values of all heads, `[B, T, N V]`, from what they mixed, `[B, T, N, L + R]`."""
    values = _through("btnl,{}lnv->btnv", mixed[..., : form.size], v, form)
    return values.reshape(*values.shape[:2], -1)


def _through(equation: str, x: Heads, linear: Any, form: _LatentForm) -> Heads:
    """Return a product of heads with the weight of a projection, `{}` for its rows."""
    weight = _weight(linear, form, x)
    weight = weight.reshape(*weight.shape[:-1], x.shape[2], -1)
    return jnp.einsum(equation.format("b" * (weight.ndim - 3)), x, weight)


def _weight(linear: Any, form: _LatentForm, x: Heads) -> Float[Array, "*rows latent width"]:
    """Return the matrix of a projection, `[L, width]`, or of each row, where it has its own.

    Where it is not at hand, it is what the projection makes of unit vectors.
    """
    unit = jnp.eye(form.dim, dtype=x.dtype)
    # Batched adapters correct each row by its own: then each row needs a matrix of its own.
    if isinstance(linear, BatchedLoRALinear):
        unit = jnp.broadcast_to(unit, (x.shape[0], *unit.shape))
    if not form.has_unit:
        return linear.weight if type(linear) is Linear else linear(unit)
    bias = linear(jnp.zeros_like(unit[..., :1, :]))
    weight = linear.weight if type(linear) is Linear else linear(unit) - bias
    return jnp.concatenate([weight, bias], axis=-2)
