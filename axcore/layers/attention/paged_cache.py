"""`PagedCache`: pages that all rows share, as a page table says.

Letters of shapes: B rows, M pages, C tokens of a page, P pages of a row, K key heads.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ModuleError
from axcore.layers.attention.cache_parts import (
    AllKeys,
    AllValues,
    Keys,
    Values,
    check_continued,
    key_room,
    with_new,
)
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
            value_dim: Size of a value.
            num_pages: Pages that there are.
            page_size: Tokens of a page.
        """

        num_kv_heads: PositiveInt = REQUIRED
        head_dim: PositiveInt = REQUIRED
        value_dim: PositiveInt = REQUIRED
        num_pages: PositiveInt = REQUIRED
        page_size: PositiveInt = REQUIRED

    def setup(self, cfg: Config) -> None:
        """Declares the pages."""
        self.keys, self.values = self._room(cfg.head_dim), self._room(cfg.value_dim)

    def forward(self, k: Keys, v: Values, info: TokenInfo) -> tuple[AllKeys, AllValues, TokenInfo]:
        """Returns all pages, `[M, C, K, size]`, with the new keys and values in them.

        Raises:
            ModuleError: The call does not say how many tokens each row has, or which pages.
        """
        check_continued(info)
        if info.page_table is None:
            raise ModuleError(
                "a layer that keeps pages is called without TokenInfo.page_table",
                hint="pass continued_rows(tokens, num_cached, num_new, page_table=table)",
            )
        pages, places = self._places(info, info.page_table)
        keys, values = (
            with_new(self.keys, k, pages, places),
            with_new(self.values, v, pages, places),
        )
        self.update("keys", keys)
        self.update("values", values)
        return keys, values, info

    def _room(self, size: int) -> Any:
        cfg = self.config
        shape = (cfg.num_pages, cfg.page_size, cfg.num_kv_heads, size)
        return key_room(shape, (None, None, "kv_heads", None), self.dtypes.compute)

    def _places(
        self, info: TokenInfo, table: Int[Array, "batch pages"]
    ) -> tuple[Int[Array, "batch time"], Int[Array, "batch time"]]:
        """Returns the page of each token and its place there; the page may be out of range."""
        size, none = self.config.page_size, self.config.num_pages
        position = info.kept_places(size * table.shape[1])
        pages = jnp.take_along_axis(table, position // size, axis=1, mode="fill", fill_value=none)
        return pages, position % size
