"""Caches of keys and values: what fills the slot `kv_cache` of attention.

A cache is called with the keys and values of new tokens, after positions. It returns those that
the core attends over, and the info by which the core reads them: as they come where nothing is
kept, all that was kept where a model serves. Info without a page table says that each row has
keys of its own, the one at position `p` in place `p`; with one, that keys are pages.
"""

from typing import Any

from axcore.config import REQUIRED, PositiveInt, config, evolve
from axcore.errors import ModuleError
from axcore.layers.attention.contiguous_cache import ContiguousCache
from axcore.layers.attention.key_store import Keys, KeyStore, Values
from axcore.layers.attention.paged_cache import PagedCache
from axcore.layers.serving_room import KVCacheConfig
from axcore.layers.tokens import TokenInfo
from axcore.module import Module


class NoCache(Module):
    """Keeps nothing: every call sees its own tokens only. What a model is trained with.

    Slot protocol: the parent fills `num_kv_heads`, `head_dim` and `value_dim`.
    """

    @config
    class Config(Module.Config["NoCache"]):
        """Describes a `NoCache`, and what takes its place where the model serves.

        Args:
            num_kv_heads: Number of key and value heads.
            head_dim: Size of a key.
            value_dim: Size of a value; None where keys are the values, too.
            layout: The cache; where None, pages if there is room for pages, else rows.
            store: The form in which it keeps keys and values.
        """

        num_kv_heads: PositiveInt = REQUIRED
        head_dim: PositiveInt = REQUIRED
        value_dim: PositiveInt | None = REQUIRED
        layout: Module.Config | None = None
        store: Module.Config = KeyStore.Config()

        def for_serving(self, room: KVCacheConfig) -> Module.Config:
            """Returns what keeps them."""
            layout: Any = self.layout
            if layout is None:
                layout = (ContiguousCache if room.pages is None else PagedCache).Config()
            return evolve(
                layout.in_room(room),
                num_kv_heads=self.num_kv_heads,
                head_dim=self.head_dim,
                value_dim=self.value_dim,
                store=self.store,
                dtypes=self.dtypes,
            )

    def forward(self, k: Keys, v: Values, info: TokenInfo) -> tuple[Keys, Values, TokenInfo]:
        """Returns all as they are.

        Raises:
            ModuleError: The call continues earlier tokens, which were not kept.
        """
        if info.num_cached is not None:
            raise ModuleError(
                "the tokens of this call follow others, and this layer keeps no keys and values",
                hint="build the model from for_serving(cfg, room)",
            )
        return k, v, info
