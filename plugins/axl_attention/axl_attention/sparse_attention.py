"""`IndexedLatentAttention`: latent attention over the few keys that an indexer chooses.

A `LightningIndexer` scores each earlier token by heads of its own, which share one key. Attention
of a query sees the `top_k` tokens that score highest, in all of its heads.

This is the portable form: scores of all pairs are computed, and attention gets a bias that hides
what was not chosen. So it saves neither time nor memory; results are those of a kernel that skips
the hidden keys.

Source: DeepSeek-AI 2025, "DeepSeek-V3.2-Exp", section 2.1, equations 1 and 2.

Letters: B rows, T tokens of a call, S keys, N heads of the indexer, H a head's size.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ConfigError, ModuleError
from axcore.layers import (
    DotProductAttention,
    LayerNorm,
    Linear,
    NoCache,
    TokenInfo,
    gather_keys,
)
from axcore.module import DTypes, Module
from axl_attention.latent_attention import LatentAttention

Hidden = Float[Array, "batch time dim"]


class LightningIndexer(Module):
    """Choose the keys that each query sees: those of the highest scores among its own.

    The score of key `s` for query `t` is `sum_n w_tn relu(q_tn . k_s)`. A choice has no gradient,
    so nothing here is trained by the loss of a model.

    Source: DeepSeek-AI 2025, "DeepSeek-V3.2-Exp", equation 1. Slot protocol: the parent fills
    `dim`, `query_dim`, `rope_dim` and `position`. Differs: positive factors on all scores are left
    out, which change no choice; and queries and keys are not rounded to 8 bits.
    """

    @config
    class Config(Module.Config["LightningIndexer"]):
        """The config of a `LightningIndexer`.

        Args:
            dim: Size of a token's vector.
            query_dim: Size of what queries are made from.
            num_heads: Number of heads.
            head_dim: Size of a head, of which the first `rope_dim` have a position.
            rope_dim: Size of the part with position.
            top_k: The most keys that a query sees.
            linear: Used for queries and keys.
            weight_linear: From a token to the weight of each head.
            norm: Normalises keys.
            position: Applied to the part with position.
            key_cache: Keeps the keys where the model serves.
        """

        dim: PositiveInt = REQUIRED
        query_dim: PositiveInt = REQUIRED
        num_heads: PositiveInt = 64
        head_dim: PositiveInt = 128
        rope_dim: PositiveInt = REQUIRED
        top_k: PositiveInt = 2048
        linear: Module.Config = Linear.Config()
        weight_linear: Module.Config = Linear.Config(dtypes=DTypes(compute="float32"))
        norm: Module.Config = LayerNorm.Config(epsilon=1e-6)
        position: Module.Config = REQUIRED
        key_cache: Module.Config = NoCache.Config()

    def setup(self, cfg: Config) -> None:
        """Build projections, norm, positions and cache."""
        if cfg.head_dim < cfg.rope_dim:
            raise ConfigError(
                f"head_dim is {cfg.head_dim}, and {cfg.rope_dim} of it have a position",
                hint=f"set head_dim to {cfg.rope_dim} or more",
            )
        self.q = cfg.linear.build(
            in_dim=cfg.query_dim, out_dim=cfg.num_heads * cfg.head_dim, axes=("embed", "heads")
        )
        self.k = cfg.linear.build(in_dim=cfg.dim, out_dim=cfg.head_dim, axes=("embed", None))
        self.key_norm = cfg.norm.build(dim=cfg.head_dim)
        self.weights = cfg.weight_linear.build(
            in_dim=cfg.dim, out_dim=cfg.num_heads, axes=("embed", None)
        )
        self.position = cfg.position.build(head_dim=cfg.rope_dim)
        self.key_cache = cfg.key_cache.build(num_kv_heads=1, head_dim=cfg.head_dim, value_dim=None)

    def forward(self, x: Hidden, of_queries: Hidden, info: TokenInfo) -> Any:
        """Return the bias of attention that hides what is not chosen, `[B, 1, T, S]`.

        It is None where no query has more keys than it may see.

        Args:
            x: The tokens.
            of_queries: What their queries are made from.
            info: Of the tokens.

        Raises:
            ModuleError: A cache has gaps.
        """
        q_BTNH, k_BSH, seen_by = self._queries_and_keys(x, of_queries, info)
        num_keys = k_BSH.shape[1]
        # The cache has the new keys by now, whether or not this call needs them.
        if num_keys <= self.config.top_k:
            return None
        products = jnp.einsum("btnh,bsh->btns", q_BTNH, k_BSH, preferred_element_type=jnp.float32)
        # Weights in float32, as the original has them: few bits would change the order.
        weights_BTN = self.weights(x.astype(jnp.float32))
        scores_BTS = jnp.einsum("btns,btn->bts", jax.nn.relu(products), weights_BTN)
        scores_BTS = jnp.where(_visible(seen_by, num_keys), scores_BTS, -jnp.inf)
        _, chosen_BTK = jax.lax.top_k(jax.lax.stop_gradient(scores_BTS), self.config.top_k)
        # By places and not by the least chosen score: others may have the same. Where a query has
        # fewer keys than it may see, the places left over are hidden from it by attention itself.
        hidden = jnp.full(scores_BTS.shape, -jnp.inf, jnp.float32)
        return jnp.put_along_axis(hidden, chosen_BTK, 0.0, axis=-1, inplace=False)[:, None]

    def _queries_and_keys(
        self, x: Hidden, of_queries: Hidden, info: TokenInfo
    ) -> tuple[Array, Array, TokenInfo]:
        """Return queries, keys of all tokens that the rows have so far, and the info of these."""
        cfg = self.config
        q = self.q(of_queries).reshape(*x.shape[:2], cfg.num_heads, cfg.head_dim)
        k = self.key_norm(self.k(x))[:, :, None]
        (q, q_rest), (k, k_rest) = (jnp.split(one, [cfg.rope_dim], axis=-1) for one in (q, k))
        q, k = self.position(q, k, info.positions)
        q, k = jnp.concatenate([q, q_rest], axis=-1), jnp.concatenate([k, k_rest], axis=-1)
        k, v, info = self.key_cache(k, k, info)
        if info.key_mask is not None:
            raise ModuleError(
                "the indexer of sparse attention is served with a cache that has gaps, among which "
                "it cannot choose",
                hint="leave the layout of key_cache and kv_cache None, and skip no tokens",
            )
        if info.num_cached is not None:
            k, _ = gather_keys(k, v, info, q.dtype)
        return q, k[:, :, 0], info


def _visible(info: TokenInfo, num_keys: int) -> Array:
    """Return which keys a query may see at all, `[B, T, S]`."""
    keys = jnp.arange(num_keys, dtype=jnp.int32)
    if info.num_cached is not None:
        # Places of a cache are positions, and a row is one document.
        return keys[None, None, :] <= info.positions[:, :, None]
    # Not by positions, which begin again with each document of a packed row.
    is_earlier = (keys[None, :] <= keys[:, None])[None]
    if info.segment_ids is None:
        return is_earlier
    return is_earlier & (info.segment_ids[:, :, None] == info.segment_ids[:, None, :])


class IndexedLatentAttention(LatentAttention):
    """A `LatentAttention` in which a query sees the keys that its indexer chooses, no others.

    Source: DeepSeek-AI 2025, "DeepSeek-V3.2-Exp", section 2.1. Slot protocol: the parent fills
    `dim`.
    """

    @config
    class Config(LatentAttention.Config):
        """The config of an `IndexedLatentAttention`.

        Args:
            indexer: Chooses the keys.
        """

        indexer: Module.Config = LightningIndexer.Config()

    def setup(self, cfg: Config) -> None:
        """Build attention and the indexer."""
        if not cfg.query_latent_dim:
            raise ConfigError(
                "query_latent_dim is None, and an indexer makes its queries from that latent",
                hint="set query_latent_dim, or take LatentAttention",
            )
        core: Any = cfg.core
        is_plain = type(core) is DotProductAttention.Config and core.is_causal
        if not is_plain or core.window:
            raise ConfigError(
                "an indexer chooses among all earlier tokens of a document, and the core is "
                f"{core!r}, which may see others",
                where="core",
                hint="take DotProductAttention.Config() with is_causal=True and window=None",
            )
        super().setup(cfg)
        self.indexer = cfg.indexer.build(
            dim=cfg.dim,
            query_dim=cfg.query_latent_dim,
            rope_dim=self.rope_dim,
            position=cfg.position,
        )

    def core_options(self, x: Hidden, of_queries: Hidden, info: TokenInfo) -> dict[str, Any]:
        """Return the bias that hides what the indexer did not choose."""
        bias = self.indexer(x, of_queries, info)
        return {} if bias is None else {"bias_BNTS": bias}
