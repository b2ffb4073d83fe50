"""KV caches: what fills the slot `kv_cache` of attention.

A cache is called with the keys and values of new tokens, after positions. It returns those that
the core attends over, and the info by which the core reads them: as they come where nothing is
kept, all that was kept where a model serves. Info without a page table says that each row has
keys of its own, the one at position `p` in place `p`; with one, that keys are pages.

Letters of shapes: R rows, S tokens of each, M pages, C tokens of a page, K key heads, T tokens of a
row in a call.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from axcore.config import REQUIRED, PositiveInt, config, evolve
from axcore.errors import ModuleError
from axcore.layers.attention.kv_store import Keys, KVStore, Places, Values
from axcore.layers.cache import KVCacheConfig
from axcore.layers.tokens import TokenInfo
from axcore.module import Module
from axcore.module.context import current_context
from axcore.module.rng import format_path

PAGE_SIZE = 256
"""Tokens of the pages as which rows are read where a call has not all of them.

Long pages leave the kernels few table entries to follow; the greatest common divisor with the
capacity is taken, so that pages tile the rows.
"""


class ContiguousCache(Module):
    """Keys and values of `capacity` tokens for each row, one row after the other.

    The token at position `p` of a row has place `p`; tokens beyond the capacity are dropped, and so
    is padding. A call with slots reads its rows as pages of the full array, so none is copied.
    Slot protocol: the parent fills `num_kv_heads`, `head_dim` and `value_dim`.
    """

    @config
    class Config(Module.Config["ContiguousCache"]):
        """The config of a `ContiguousCache`.

        Args:
            num_kv_heads: Number of key and value heads.
            head_dim: Size of a key.
            value_dim: Size of a value; None where keys are the values, too.
            store: The form in which both are kept.
            num_rows: Rows of the cache.
            capacity: Tokens of a row.
        """

        num_kv_heads: PositiveInt = REQUIRED
        head_dim: PositiveInt = REQUIRED
        value_dim: PositiveInt | None = REQUIRED
        store: Module.Config = KVStore.Config()
        num_rows: PositiveInt = REQUIRED
        capacity: PositiveInt = REQUIRED

        def with_size(self, cache_size: KVCacheConfig) -> "ContiguousCache.Config":
            """Return the config of a cache for so much."""
            return evolve(self, num_rows=cache_size.num_rows, capacity=cache_size.capacity)

    def setup(self, cfg: Config) -> None:
        """Build the store."""
        self.store = _built_store(cfg, cfg.num_rows, cfg.capacity, row_axis="batch")

    def forward(self, k: Keys, v: Values, info: TokenInfo) -> tuple[Any, Any, TokenInfo]:
        """Return all keys and values of each row, the new ones among them, and how to read them.

        They are `[R, S, K, size]`, or the same cut into pages.

        Raises:
            ModuleError: The call does not say how many tokens each row has, or has other rows than
                the cache and does not say which.
        """
        _check_continued(k, info)
        rows = rows_of(k.shape[0], self.config.num_rows, info)
        places = Places(rows[:, None], info.kept_places(self.config.capacity))
        # An engine passes one info to all layers: the table in it is that of layers with pages.
        info = info._replace(page_table=None)
        if info.slots is None:
            return self.store(k, v, places, info)
        return self._as_pages(self.store(k, v, places, info), rows)

    def _as_pages(
        self, kept: tuple[Any, Any, TokenInfo], rows: Int[Array, " batch"]
    ) -> tuple[Any, Any, TokenInfo]:
        keys, values, info = kept
        size = math.gcd(self.config.capacity, PAGE_SIZE)
        count = self.config.capacity // size
        table = rows[:, None] * count + jnp.arange(count, dtype=jnp.int32)[None, :]
        # Row r is pages r * count and on of the same memory, so this copies nothing.
        keys, values, scales = jax.tree.map(
            lambda x: x.reshape(-1, size, *x.shape[2:]), (keys, values, info.scales)
        )
        return keys, values, info._replace(page_table=table, scales=scales)


class PagedCache(Module):
    """Keys and values in pages; each call says which pages a row has.

    The token at position `p` of a row has place `p % page_size` of the row's page
    `p // page_size`. What has no page is dropped, and so is padding. Slot protocol: the parent
    fills `num_kv_heads`, `head_dim` and `value_dim`.

    Source: Kwon et al. 2023, arXiv:2309.06180, section 4.1.
    """

    @config
    class Config(Module.Config["PagedCache"]):
        """The config of a `PagedCache`.

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
        store: Module.Config = KVStore.Config()
        num_pages: PositiveInt = REQUIRED
        page_size: PositiveInt = REQUIRED
        row_axis: str | None = None

        def with_size(self, cache_size: KVCacheConfig) -> "PagedCache.Config":
            """Return the config of a cache of so many pages."""
            assert cache_size.pages is not None
            return evolve(
                self, num_pages=cache_size.pages.num_pages, page_size=cache_size.pages.page_size
            )

    def setup(self, cfg: Config) -> None:
        """Build the store."""
        self.store = _built_store(cfg, cfg.num_pages, cfg.page_size, row_axis=cfg.row_axis)

    def forward(self, k: Keys, v: Values, info: TokenInfo) -> tuple[Any, Any, TokenInfo]:
        """Return all pages, `[M, C, K, size]`, with the new keys and values in them, and the info.

        Raises:
            ModuleError: The call does not say how many tokens each row has, or which pages.
        """
        _check_continued(k, info)
        if info.page_table is None:
            raise ModuleError(
                "a layer that keeps pages is called without TokenInfo.page_table",
                hint="pass continued_rows(tokens, num_cached, num_new, page_table=table)",
            )
        return self.store(k, v, self._places(info, info.page_table), info)

    def _places(self, info: TokenInfo, table: Int[Array, "batch pages"]) -> Places:
        size, none = self.config.page_size, self.config.num_pages
        # Padding and tokens without a page get page `num_pages`, which a write out of range drops.
        position = info.kept_places(size * table.shape[1])
        pages = jnp.take_along_axis(table, position // size, axis=1, mode="fill", fill_value=none)
        return Places(pages, position % size)


class NoCache(Module):
    """No cache: every call sees its own tokens only. What a model is trained with.

    Slot protocol: the parent fills `num_kv_heads`, `head_dim` and `value_dim`.
    """

    @config
    class Config(Module.Config["NoCache"]):
        """The config of a `NoCache`, and what takes its place where the model serves.

        Args:
            num_kv_heads: Number of key and value heads.
            head_dim: Size of a key.
            value_dim: Size of a value; None where keys are the values, too.
            layout: The cache; where None, pages if the cache's size has pages, else rows.
            store: The form in which it keeps keys and values.
        """

        num_kv_heads: PositiveInt = REQUIRED
        head_dim: PositiveInt = REQUIRED
        value_dim: PositiveInt | None = REQUIRED
        layout: Module.Config | None = None
        store: Module.Config = KVStore.Config()

        def for_serving(self, cache_size: KVCacheConfig) -> Module.Config:
            """Return the cache of a model that serves."""
            layout: Any = self.layout
            if layout is None:
                layout = (ContiguousCache if cache_size.pages is None else PagedCache).Config()
            return evolve(
                layout.with_size(cache_size),
                num_kv_heads=self.num_kv_heads,
                head_dim=self.head_dim,
                value_dim=self.value_dim,
                store=self.store,
                dtypes=self.dtypes,
            )

    def forward(self, k: Keys, v: Values, info: TokenInfo) -> tuple[Keys, Values, TokenInfo]:
        """Return all as they are.

        Raises:
            ModuleError: The call continues earlier tokens, which were not kept.
        """
        if info.num_cached is not None:
            raise ModuleError(
                "the tokens of this call follow others, and this layer keeps no keys and values",
                hint="build the model from for_serving(cfg, cache_size)",
            )
        return k, v, info


class SlidingCache(Module):
    """A ring of pages for each row: the window, and the tokens of one call.

    Kernels read it by a page table in which a row's pages repeat: page `j` of a row is number
    `j % num_pages` of its ring. The core's own window hides overwritten tokens. Slot protocol: the
    parent fills `num_kv_heads`, `head_dim` and `value_dim`.
    """

    @config
    class Config(Module.Config["SlidingCache"]):
        """The config of a `SlidingCache`.

        Args:
            num_kv_heads: Number of key and value heads.
            head_dim: Size of a key.
            value_dim: Size of a value; None where keys are the values, too.
            store: The form in which both are kept.
            window: Keys that a token sees, its own counted.
            page_size: Tokens of a page of the ring.
            num_rows: Rows of the cache.
            capacity: Tokens of the longest row.
            call_tokens: Tokens of a row that one call has at most.
        """

        num_kv_heads: PositiveInt = REQUIRED
        head_dim: PositiveInt = REQUIRED
        value_dim: PositiveInt | None = REQUIRED
        store: Module.Config = KVStore.Config()
        window: PositiveInt = REQUIRED
        page_size: PositiveInt = 16
        num_rows: PositiveInt = REQUIRED
        capacity: PositiveInt = REQUIRED
        call_tokens: PositiveInt = REQUIRED

        def with_size(self, cache_size: KVCacheConfig) -> "SlidingCache.Config":
            """Return the config of a cache for so many rows."""
            return evolve(
                self,
                num_rows=cache_size.num_rows,
                capacity=cache_size.capacity,
                call_tokens=min(cache_size.call_tokens, cache_size.capacity),
            )

    def setup(self, cfg: Config) -> None:
        """Build the pages of all rings."""
        # A call writes its tokens before any query reads: the oldest key of its first query must
        # survive until then, which is `window - 1` tokens before the call.
        self.num_pages = -(-(cfg.window - 1 + cfg.call_tokens) // cfg.page_size)
        self.pages = PagedCache.Config(store=cfg.store, row_axis="batch").build(
            num_kv_heads=cfg.num_kv_heads,
            head_dim=cfg.head_dim,
            value_dim=cfg.value_dim,
            num_pages=cfg.num_rows * self.num_pages,
            page_size=cfg.page_size,
        )

    def forward(self, k: Keys, v: Values, info: TokenInfo) -> tuple[Any, Any, TokenInfo]:
        """Return the pages of all rings, with the new keys and values in them, and the info.

        Raises:
            ModuleError: The call does not say how many tokens each row has, has more of them than
                the cache takes, or other rows than the cache and does not say which.
        """
        _check_continued(k, info)
        cfg = self.config
        if k.shape[1] > cfg.call_tokens:
            raise ModuleError(
                f"a call has {k.shape[1]} tokens of a row; the cache takes {cfg.call_tokens}",
                hint="set call_tokens of the KVCacheConfig",
            )
        rows = rows_of(k.shape[0], cfg.num_rows, info)
        return self.pages(k, v, info._replace(page_table=self._ring(rows)))

    def _ring(self, rows: Int[Array, " batch"]) -> Int[Array, "batch pages"]:
        """Return the page table of rows; a row out of range gets pages out of range."""
        of_a_row = -(-self.config.capacity // self.config.page_size)
        numbers = jnp.arange(of_a_row, dtype=jnp.int32) % self.num_pages
        return rows[:, None] * self.num_pages + numbers[None, :]


class GappedCache(Module):
    """A cache of the keys and values of some of a row's tokens, and which tokens these are.

    For a layer that skips tokens, as in mixture of depths: other caches are read without gaps, and
    refuse to be called by one. Such a layer calls those below it with a `TokenInfo` of the tokens
    that it has chosen: gathered, or all of them with segment 0 for those that it skips. Slot
    protocol: the parent fills `num_kv_heads`, `head_dim` and `value_dim`.

    Source: Raposo et al. 2024, arXiv:2404.02258.
    """

    @config
    class Config(Module.Config["GappedCache"]):
        """The config of a `GappedCache`; it is a `layout` of `NoCache.Config`.

        Args:
            num_kv_heads: Number of key and value heads.
            head_dim: Size of a key.
            value_dim: Size of a value; None where keys are the values, too.
            store: The form in which both are kept.
            cache: What keeps them: rows, or pages where the cache's size has pages.
        """

        num_kv_heads: PositiveInt = REQUIRED
        head_dim: PositiveInt = REQUIRED
        value_dim: PositiveInt | None = REQUIRED
        store: Module.Config = KVStore.Config()
        cache: Module.Config = REQUIRED

        def with_size(self, cache_size: KVCacheConfig) -> "GappedCache.Config":
            """Return the config of a cache for so much."""
            cache: Any = (ContiguousCache if cache_size.pages is None else PagedCache).Config()
            return evolve(self, cache=cache.with_size(cache_size))

    def setup(self, cfg: Config) -> None:
        """Build the cache, and another of one number for each token."""
        self.cache = cfg.cache.build(
            num_kv_heads=cfg.num_kv_heads,
            head_dim=cfg.head_dim,
            value_dim=cfg.value_dim,
            store=cfg.store,
        )
        self.marks = cfg.cache.build(num_kv_heads=1, head_dim=1, value_dim=None)

    def forward(self, k: Keys, v: Values, info: TokenInfo) -> tuple[Any, Any, TokenInfo]:
        """Return the cache's keys and values, and in the info which of them are there.

        Raises:
            ModuleError: The call does not say how many tokens each row has.
        """
        _check_counts(k, info)
        call = info.of_call()
        marks = self._is_there(info, call)[:, :, None, None].astype(k.dtype)
        # A mark for all tokens of the call: 0 for a skipped one, over what was there before.
        marks, _, _ = self.marks(marks, marks, call)
        # The cache refuses calls with only some of the tokens, so it gets the layer's tokens as if
        # they were the full call.
        keys, values, read = self.cache(k, v, info._replace(call=info.tokens))
        return keys, values, read._replace(call=info.call, key_mask=marks[..., 0, 0] > 0)

    def _is_there(self, info: TokenInfo, call: TokenInfo) -> Bool[Array, "batch time"]:
        """Return which tokens of the call the layer is called with."""
        same_BTC = call.positions[:, :, None] == info.positions[:, None, :]
        if info.segment_ids is not None:
            same_BTC &= (info.segment_ids > 0)[:, None, :]
        return jnp.any(same_BTC, axis=2)


def _built_store(cfg: Any, num_rows: int, num_places: int, *, row_axis: str | None = None) -> Any:
    """Return the store of a cache.

    Args:
        cfg: Of the cache.
        num_rows: Rows or pages.
        num_places: Tokens of each.
        row_axis: Logical axis of rows.
    """
    return cfg.store.build(
        num_rows=num_rows,
        row_axis=row_axis,
        num_places=num_places,
        num_kv_heads=cfg.num_kv_heads,
        head_dim=cfg.head_dim,
        value_dim=cfg.value_dim,
    )


def _check_continued(k: Array, info: TokenInfo) -> None:
    """Refuse a call that does not say how many tokens each row has, or has not all of them.

    Raises:
        ModuleError: It has no `num_cached`, or the tokens are not those of the call.
    """
    _check_counts(k, info)
    check_all_tokens(info)


def _check_counts(k: Array, info: TokenInfo) -> None:
    """Refuse a call that does not say how many tokens each row has.

    Raises:
        ModuleError: It has no `num_cached`, or keys of another number of tokens than its info.
    """
    if info.num_cached is None:
        raise ModuleError(
            "a layer that keeps keys and values is called without TokenInfo.num_cached",
            hint="pass continued_rows(tokens, num_cached, num_new)",
        )
    if k.shape[:2] != info.positions.shape:
        raise ModuleError(
            f"a layer that keeps keys and values has keys of {list(k.shape[:2])} tokens, and its "
            f"TokenInfo has {list(info.positions.shape)}",
            hint="pass info._replace(positions=..., segment_ids=...) of the tokens that the layer "
            "is called with",
        )


def check_all_tokens(info: TokenInfo) -> None:
    """Refuse tokens that are not all of a call's, where a cache is read without gaps.

    Raises:
        ModuleError: They are not.
    """
    if not info.has_all_tokens:
        layer = current_context("a cache was asked").path
        raise ModuleError(
            "attention that serves is called with other tokens than its call has: its TokenInfo "
            "has other positions or segment_ids. A layer that skips tokens leaves gaps in its "
            "cache, which would be read as if they were keys",
            where=format_path(layer) or "the root",
            hint="give the attention kv_cache=NoCache.Config(layout=GappedCache.Config()), which "
            "keeps what the layer skipped",
        )


def rows_of(batch: int, num_rows: int, info: TokenInfo) -> Any:
    """Return which row of a cache each row of a call has, `[batch]`.

    Raises:
        ModuleError: The call does not say it, and has other rows than the cache.
    """
    if info.slots is not None:
        return info.slots
    if batch != num_rows:
        raise ModuleError(
            f"the call has {batch} rows, and the cache {num_rows}",
            hint="say which of them they are: continued_rows(..., slots=slots)",
        )
    return jnp.arange(batch, dtype=jnp.int32)
