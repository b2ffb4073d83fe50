"""`PagedCache`: pages that all rows share, as a page table says.

Letters of shapes: B rows, M pages, C tokens of a page, P pages of a row, K key heads.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from axcore.config import REQUIRED, PositiveInt, config, evolve
from axcore.errors import ModuleError
from axcore.layers.attention.cache_parts import built_store, check_continued
from axcore.layers.attention.key_store import Keys, KeyStore, Places, Values
from axcore.layers.serving_room import KVCacheConfig
from axcore.layers.tokens import TokenInfo
from axcore.module import Module


class PagedCache(Module):
    """Keeps keys and values in pages; which of them a row has, each call says.

    The token at position `p` of a row has place `p % page_size` of the row's page
    `p // page_size`. What has no page is dropped, and so is padding. Slot protocol: the parent
    fills `num_kv_heads`, `head_dim` and `value_dim`.

    Source: Kwon et al. 2023, arXiv:2309.06180, section 4.1.
    """

    @config
    class Config(Module.Config["PagedCache"]):
        """Describes a `PagedCache`.

        Args:
            num_kv_heads: Number of key and value heads.
            head_dim: Size of a key.
            value_dim: Size of a value; None where keys are the values, too.
            store: The form in which both are kept.
            num_pages: Pages that there are.
            page_size: Tokens of a page.
            row_axis: Logical axis of pages: `batch` where each row has pages of its own.
        """

        num_kv_heads: PositiveInt = REQUIRED
        head_dim: PositiveInt = REQUIRED
        value_dim: PositiveInt | None = REQUIRED
        store: Module.Config = KeyStore.Config()
        num_pages: PositiveInt = REQUIRED
        page_size: PositiveInt = REQUIRED
        row_axis: str | None = None

        def in_room(self, room: KVCacheConfig) -> "PagedCache.Config":
            """Returns the config of a cache with the pages that there is room for."""
            assert room.pages is not None
            return evolve(self, num_pages=room.pages.num_pages, page_size=room.pages.page_size)

    def setup(self, cfg: Config) -> None:
        """Builds the store."""
        self.store = built_store(cfg, cfg.num_pages, cfg.page_size, row_axis=cfg.row_axis)

    def forward(self, k: Keys, v: Values, info: TokenInfo) -> tuple[Any, Any, TokenInfo]:
        """Returns all pages, `[M, C, K, size]`, with the new keys and values in them, and the info.

        Raises:
            ModuleError: The call does not say how many tokens each row has, or which pages.
        """
        check_continued(k, info)
        if info.page_table is None:
            raise ModuleError(
                "a layer that keeps pages is called without TokenInfo.page_table",
                hint="pass continued_rows(tokens, num_cached, num_new, page_table=table)",
            )
        return self.store(k, v, self._places(info, info.page_table), info)

    def _places(self, info: TokenInfo, table: Int[Array, "batch pages"]) -> Places:
        size, none = self.config.page_size, self.config.num_pages
        position = info.kept_places(size * table.shape[1])
        pages = jnp.take_along_axis(table, position // size, axis=1, mode="fill", fill_value=none)
        return Places(pages, position % size)
