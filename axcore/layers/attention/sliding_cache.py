"""`SlidingCache`: of each row the last tokens only, where no later token sees others."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from axcore.config import REQUIRED, PositiveInt, config, evolve
from axcore.errors import ModuleError
from axcore.layers.attention.cache_parts import check_continued, rows_of
from axcore.layers.attention.key_store import Keys, KeyStore, Values
from axcore.layers.attention.paged_cache import PagedCache
from axcore.layers.serving_room import KVCacheConfig
from axcore.layers.tokens import TokenInfo
from axcore.module import Module


class SlidingCache(Module):
    """Keeps a ring of pages for each row: the window, and room for the tokens of one call.

    To those who read it, it is a page table in which a row's pages come again and again: page `j`
    of a row is number `j % num_pages` of its ring. The core's own window hides what was written
    over. Slot protocol: the parent fills `num_kv_heads`, `head_dim` and `value_dim`.
    """

    @config
    class Config(Module.Config["SlidingCache"]):
        """Describes a `SlidingCache`.

        Args:
            num_kv_heads: Number of key and value heads.
            head_dim: Size of a key.
            value_dim: Size of a value; None where keys are the values, too.
            store: The form in which both are kept.
            window: Keys that a token sees, its own counted.
            page_size: Tokens of a page of the ring.
            num_rows: Rows that there is room for.
            capacity: Tokens of the longest row.
            call_tokens: Tokens of a row that one call has at most.
        """

        num_kv_heads: PositiveInt = REQUIRED
        head_dim: PositiveInt = REQUIRED
        value_dim: PositiveInt | None = REQUIRED
        store: Module.Config = KeyStore.Config()
        window: PositiveInt = REQUIRED
        page_size: PositiveInt = 16
        num_rows: PositiveInt = REQUIRED
        capacity: PositiveInt = REQUIRED
        call_tokens: PositiveInt = REQUIRED

        def in_room(self, room: KVCacheConfig) -> "SlidingCache.Config":
            """Returns the config of a cache for so many rows."""
            return evolve(
                self,
                num_rows=room.num_rows,
                capacity=room.capacity,
                call_tokens=min(room.call_tokens, room.capacity),
            )

    def setup(self, cfg: Config) -> None:
        """Builds the pages of all rings."""
        self.num_pages = -(-(cfg.window - 1 + cfg.call_tokens) // cfg.page_size)
        self.pages = PagedCache.Config(store=cfg.store, row_axis="batch").build(
            num_kv_heads=cfg.num_kv_heads,
            head_dim=cfg.head_dim,
            value_dim=cfg.value_dim,
            num_pages=cfg.num_rows * self.num_pages,
            page_size=cfg.page_size,
        )

    def forward(self, k: Keys, v: Values, info: TokenInfo) -> tuple[Any, Any, TokenInfo]:
        """Returns the pages of all rings, with the new keys and values in them, and the info.

        Raises:
            ModuleError: The call does not say how many tokens each row has, has more of them than
                there is room for, or other rows than the cache and does not say which.
        """
        check_continued(k, info)
        cfg = self.config
        if k.shape[1] > cfg.call_tokens:
            raise ModuleError(
                f"a call has {k.shape[1]} tokens of a row; there is room for {cfg.call_tokens}",
                hint="set call_tokens of the KVCacheConfig",
            )
        rows = rows_of(k.shape[0], cfg.num_rows, info)
        return self.pages(k, v, info._replace(page_table=self._ring(rows)))

    def _ring(self, rows: Int[Array, " batch"]) -> Int[Array, "batch pages"]:
        """Returns the page table of rows; that of a row out of range has no page that there is."""
        of_a_row = -(-self.config.capacity // self.config.page_size)
        numbers = jnp.arange(of_a_row, dtype=jnp.int32) % self.num_pages
        return rows[:, None] * self.num_pages + numbers[None, :]
