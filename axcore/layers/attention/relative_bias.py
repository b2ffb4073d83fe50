"""Biases of attention by distance: `RelativeBias` makes them, `BiasedAttention` adds them.

One bias serves all layers of a stack, so it comes as a shared value.

Letters: B rows, T tokens of a row, S keys, N heads.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num
from numpy.typing import NDArray

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ConfigError, ModuleError
from axcore.layers.attention.dot_product import DotProductAttention
from axcore.layers.cache import KVCacheConfig
from axcore.layers.tokens import TokenInfo
from axcore.module import Initializer, Module, Normal, Param

POSITION_BIAS = "position_bias"
"""The shared value that `BiasedAttention` adds to logits: `[B, N, T, S]` floats, or B of 1."""


class RelativeBias(Module):
    """A learned number for each head and distance; far distances share buckets.

    Whoever runs layers with `BiasedAttention` sets it around them:
    `with self.with_shared(POSITION_BIAS, self.bias(info)): ...`

    Source: Raffel et al. 2019, arXiv:1910.10683, section 2.1, buckets as published.
    """

    @config
    class Config(Module.Config["RelativeBias"]):
        """The config of a `RelativeBias`.

        Args:
            num_heads: Number of query heads.
            num_buckets: Half of them are of single distances, the others of ever more.
            max_distance: Distances from here on share the last bucket.
            is_bidirectional: Whether what follows a token has buckets of its own; otherwise it is
                at distance 0, as it is not seen.
            weight_init: First value of the table.
        """

        num_heads: PositiveInt = REQUIRED
        num_buckets: PositiveInt = 32
        max_distance: PositiveInt = 128
        is_bidirectional: bool = True
        weight_init: Initializer = Normal(std=0.02)

        def for_serving(self, cache_size: KVCacheConfig) -> "RelativeBias.Config":
            """Return what biases the keys of a cache; itself in encoders, which have none."""
            if self.is_bidirectional:
                return self
            return CachedRelativeBias.Config(
                num_heads=self.num_heads,
                num_buckets=self.num_buckets,
                max_distance=self.max_distance,
                is_bidirectional=False,
                weight_init=self.weight_init,
                num_keys=cache_size.num_keys,
                dtypes=self.dtypes,
            )

    def setup(self, cfg: Config) -> None:
        """Declare the table."""
        exact = cfg.num_buckets // (4 if cfg.is_bidirectional else 2)
        if not 0 < exact < cfg.max_distance:
            raise ConfigError(
                f"num_buckets is {cfg.num_buckets} and max_distance {cfg.max_distance}: {exact} "
                "buckets are of single distances, which must be fewer than all and at least one",
                hint="set num_buckets=32 and max_distance=128",
            )
        self.inactive_params = cfg.num_buckets * cfg.num_heads  # a lookup multiplies nothing
        shape = (cfg.num_buckets, cfg.num_heads)
        self.weight = Param(shape, axes=(None, "heads"), init=cfg.weight_init)

    def forward(self, info: TokenInfo) -> Float[Array, "batch heads time keys"]:
        """Return the bias of each query, by row, on each key: `[1, N, T, T]`."""
        cfg, num_tokens = self.config, info.positions.shape[1]
        # By place in the row and not by position: within a document the two differ alike, and
        # other documents are not seen. So all rows share one bias.
        buckets = relative_buckets(
            np.arange(1 - num_tokens, num_tokens),
            num_buckets=cfg.num_buckets,
            max_distance=cfg.max_distance,
            is_bidirectional=cfg.is_bidirectional,
        )
        by_distance = jnp.take(self.weight, buckets, axis=0).T  # [N, 2 T - 1]
        # Row i is the numbers from T - 1 - i on. Repeated with one number more than a row is long,
        # each row begins one place earlier: no gather, whose gradient would be a slow scatter.
        period = jnp.pad(by_distance, ((0, 0), (0, 1)))
        repeated = jnp.tile(period, (1, num_tokens))[:, : num_tokens * (2 * num_tokens - 1)]
        rows = repeated.reshape(cfg.num_heads, num_tokens, 2 * num_tokens - 1)
        return rows[None, :, :, num_tokens - 1 :]


class CachedRelativeBias(RelativeBias):
    """The same numbers for tokens that follow those of a cache, whose keys are in order."""

    @config
    class Config(RelativeBias.Config):
        """The config of a `CachedRelativeBias`; it adds to the fields of `RelativeBias`.

        Args:
            num_keys: S, the most keys of a row.
        """

        num_keys: PositiveInt = REQUIRED

    config: Config

    def forward(self, info: TokenInfo) -> Float[Array, "batch heads time keys"]:
        """Return the bias of each query, by row, on each key: `[B, N, T, S]`."""
        cfg = self.config
        buckets = relative_buckets(
            -np.arange(cfg.num_keys),
            num_buckets=cfg.num_buckets,
            max_distance=cfg.max_distance,
            is_bidirectional=False,
        )
        by_distance = jnp.take(self.weight, buckets, axis=0)  # [S, N]
        keys = jnp.arange(cfg.num_keys, dtype=info.positions.dtype)
        # Keys behind a query are not seen, whatever bias they get.
        back = jnp.maximum(info.positions[:, :, None] - keys[None, None, :], 0)
        bias_BTSN = jnp.take(by_distance, back, axis=0, mode="clip")
        return jnp.moveaxis(bias_BTSN, -1, 1)


def relative_buckets(
    distances: NDArray[np.int64], *, num_buckets: int, max_distance: int, is_bidirectional: bool
) -> NDArray[np.int32]:
    """Return the bucket of each distance, a key's place less the query's.

    Args:
        distances: Of any shape.
        num_buckets: See `RelativeBias`.
        max_distance: See `RelativeBias`.
        is_bidirectional: See `RelativeBias`.
    """
    first: Any = 0
    if is_bidirectional:
        num_buckets //= 2
        first = np.where(distances > 0, num_buckets, 0)
        distances = np.abs(distances)
    else:
        distances = np.maximum(-distances, 0)
    exact = num_buckets // 2
    # In float32, as published: at some distances another precision would give another bucket.
    ratio = np.log(np.maximum(distances, 1).astype(np.float32) / np.float32(exact))
    share = ratio / np.float32(math.log(max_distance / exact))
    shared = exact + (share * np.float32(num_buckets - exact)).astype(np.int64)
    bucket = np.where(distances < exact, distances, np.minimum(shared, num_buckets - 1))
    return np.asarray(first + bucket, np.int32)


class BiasedAttention(Module):
    """Attention by another core, with the shared value `POSITION_BIAS` added to its logits.

    Slot protocol: the parent fills `num_heads`.
    """

    @config
    class Config(Module.Config["BiasedAttention"]):
        """The config of a `BiasedAttention`.

        Args:
            num_heads: Number of query heads.
            core: Weighs the values.
        """

        num_heads: PositiveInt = REQUIRED
        core: Module.Config = DotProductAttention.Config()

    def setup(self, cfg: Config) -> None:
        """Build the core."""
        self.core = cfg.core.build(num_heads=cfg.num_heads)

    def forward(
        self,
        q: Float[Array, "batch time heads head_dim"],
        k: Num[Array, "rows keys kv_heads head_dim"],
        v: Num[Array, "rows keys kv_heads value_dim"],
        info: TokenInfo,
        **options: Any,
    ) -> Float[Array, "batch time heads value_dim"]:
        """Return each query's weighted mean of values.

        Raises:
            ModuleError: Nothing around the layer set a bias, or one of fewer keys.
        """
        bias = self.get_shared(POSITION_BIAS)
        num_keys = info.key_positions(k.shape[1]).shape[1]
        # Fewer would be broadcast where there is one.
        if bias is None or bias.shape[-1] < num_keys:
            found = "none" if bias is None else f"one for {bias.shape[-1]} of them"
            raise ModuleError(
                f"attention with a shared bias sees {num_keys} keys, and there is {found}",
                hint="set it around the layers: self.with_shared(POSITION_BIAS, self.bias(info)), "
                "and serve the model from for_serving(cfg, cache_size)",
            )
        return self.core(q, k, v, info, bias_BNTS=bias[..., :num_keys], **options)
