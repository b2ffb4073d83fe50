"""`GappedCache`: keys and values of a layer that is called with some of a row's tokens only.

Letters of shapes: R rows or pages, S tokens of each, T tokens of a row in a call, C those that the
layer is called with.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool

from axcore.config import REQUIRED, PositiveInt, config, evolve
from axcore.layers.attention.cache_parts import check_counts
from axcore.layers.attention.contiguous_cache import ContiguousCache
from axcore.layers.attention.key_store import Keys, KeyStore, Values
from axcore.layers.attention.paged_cache import PagedCache
from axcore.layers.serving_room import KVCacheConfig
from axcore.layers.tokens import TokenInfo
from axcore.module import Module


class GappedCache(Module):
    """Keeps which tokens of a row have keys, next to a cache of these keys and values.

    For a layer that skips tokens, as in mixture of depths: other caches are read without gaps, and
    refuse to be called by one. Such a layer calls those below it with a `TokenInfo` of the tokens
    that it has chosen: gathered, or all of them with segment 0 for those that it skips. Slot
    protocol: the parent fills `num_kv_heads`, `head_dim` and `value_dim`.

    Source: Raposo et al. 2024, arXiv:2404.02258.
    """

    @config
    class Config(Module.Config["GappedCache"]):
        """Describes a `GappedCache`; it is a `layout` of `NoCache.Config`.

        Args:
            num_kv_heads: Number of key and value heads.
            head_dim: Size of a key.
            value_dim: Size of a value; None where keys are the values, too.
            store: The form in which both are kept.
            cache: What keeps them: rows, or pages where there is room for pages.
        """

        num_kv_heads: PositiveInt = REQUIRED
        head_dim: PositiveInt = REQUIRED
        value_dim: PositiveInt | None = REQUIRED
        store: Module.Config = KeyStore.Config()
        cache: Module.Config = REQUIRED

        def in_room(self, room: KVCacheConfig) -> "GappedCache.Config":
            """Returns the config of a cache for so much."""
            cache: Any = (ContiguousCache if room.pages is None else PagedCache).Config()
            return evolve(self, cache=cache.in_room(room))

    def setup(self, cfg: Config) -> None:
        """Builds the cache, and another of one number for each token."""
        self.cache = cfg.cache.build(
            num_kv_heads=cfg.num_kv_heads,
            head_dim=cfg.head_dim,
            value_dim=cfg.value_dim,
            store=cfg.store,
        )
        self.marks = cfg.cache.build(num_kv_heads=1, head_dim=1, value_dim=None)

    def forward(self, k: Keys, v: Values, info: TokenInfo) -> tuple[Any, Any, TokenInfo]:
        """Returns what the cache does, and in the info which of the keys are there.

        Raises:
            ModuleError: The call does not say how many tokens each row has.
        """
        check_counts(k, info)
        call = info.of_call()
        marks = self._is_there(info, call)[:, :, None, None].astype(k.dtype)
        marks, _, _ = self.marks(marks, marks, call)
        keys, values, read = self.cache(k, v, info._replace(call=info.tokens))
        return keys, values, read._replace(call=info.call, key_mask=marks[..., 0, 0] > 0)

    def _is_there(self, info: TokenInfo, call: TokenInfo) -> Bool[Array, "batch time"]:
        """Returns which tokens of the call the layer is called with."""
        same_BTC = call.positions[:, :, None] == info.positions[:, None, :]
        if info.segment_ids is not None:
            same_BTC &= (info.segment_ids > 0)[:, None, :]
        return jnp.any(same_BTC, axis=2)
