"""`KVCacheConfig`: the size of the KV cache of a model that serves.

A config with a method `for_serving(room)` is replaced there by what the method returns.
"""

import attrs


@attrs.frozen(kw_only=True)
class PagedKVCacheConfig:
    """A KV cache in pages (vLLM's blocks): each row takes as many as its tokens need.

    Args:
        num_pages: Pages of each layer's cache.
        page_size: Tokens of a page.
    """

    num_pages: int
    page_size: int


@attrs.frozen(kw_only=True)
class KVCacheConfig:
    """The size of a KV cache.

    Args:
        num_rows: Rows that are served at once.
        capacity: Tokens of a row in caches, including its padding in a call.
        max_length: Tokens of the longest text.
        pages: The pages of keys and values; None for one contiguous cache for each row.
        call_tokens: Tokens of a row that one call has at most.
    """

    num_rows: int
    capacity: int
    max_length: int
    pages: PagedKVCacheConfig | None = None
    call_tokens: int = 512
