"""Token stores: a source, tokenized once, in files that training maps into memory."""

from axcore.data.store.build import BuildProgress, build_store
from axcore.data.store.reader import StoredTokens, TokenStoreDirectory, open_store

__all__ = [
    "BuildProgress",
    "StoredTokens",
    "TokenStoreDirectory",
    "build_store",
    "open_store",
]
