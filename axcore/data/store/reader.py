"""Open a token store: its splits as readers of any pair, however many shards there are.

`StoredSource` is a store as a source, which training reads as it is.
"""

from collections import Counter
from collections.abc import Iterator
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from axcore.config import REQUIRED, config
from axcore.data.document import Document, Source
from axcore.data.packing.corpus import Corpus
from axcore.data.packing.packing import Pairs, plain_tokens
from axcore.data.store.manifest import (
    SPLITS,
    Manifest,
    digest_of,
    read_manifest,
    tokenizer_config,
    tokenizer_digest,
)
from axcore.data.store.shard import Shard, ShardInfo, shard_digest
from axcore.data.tokenizers.tokenizer import Tokenizer
from axcore.errors import DataError

# Opening one takes some system calls, so all of a large store should fit.
_OPEN_SHARDS = 8192
"""Each has two mappings; a process may have 65,530 by default."""


_PERCENTILES = (10, 50, 90, 99)


class StoredTokens:
    """The documents of a split of a store, shard after shard; a shard is mapped when it is read."""

    def __init__(self, folder: Path, shards: tuple[ShardInfo, ...], dtype: str) -> None:
        self.shards = shards
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._folder = folder
        self._first_pair = _sums([shard.num_pairs for shard in shards])
        self._first_document = _sums([shard.documents for shard in shards])
        self._shard = lru_cache(_OPEN_SHARDS)(self._opened)

    @property
    def num_documents(self) -> int:
        """D."""
        return int(self._first_document[-1])

    @property
    def num_tokens(self) -> int:
        """N."""
        return int(self._first_pair[-1]) + self.num_documents

    @cached_property
    def digest(self) -> str:
        """A short hash of every token and every boundary, from the digests of the shards."""
        return digest_of(self.shards, self.dtype.str)

    def read(self, begin: int, end: int) -> Pairs:
        """Return the pairs from number `begin` to before `end`."""
        pieces = []
        # The last shard that begins at or before the pair.
        index = int(np.searchsorted(self._first_pair, begin, side="right")) - 1
        while begin < end:
            first, next_first = (int(pair) for pair in self._first_pair[index : index + 2])
            stop = min(end, next_first)
            pieces.append(self._shard(index).read(begin - first, stop - first))
            begin, index = stop, index + 1
        return Pairs.joined(pieces)

    def document(self, index: int) -> NDArray[Any]:
        """Return the tokens of a document by its number."""
        shard = int(np.searchsorted(self._first_document, index, side="right")) - 1
        return plain_tokens(self._shard(shard).document(index - int(self._first_document[shard])))

    def first_pairs(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many pairs come before each of some documents; D counts as one after all."""
        found = np.empty(len(documents), np.int64)
        shards = self._first_document.searchsorted(documents, side="right") - 1
        # Documents mostly come in runs of one shard: one lookup for each run.
        cuts = np.flatnonzero(shards[1:] != shards[:-1]) + 1
        for begin, end in pairwise([0, *cuts.tolist(), len(documents)]):
            shard = int(shards[begin])
            # D, which is one after the last document, has no shard.
            if shard == len(self.shards):
                found[begin:end] = self._first_pair[shard]
                continue
            own = documents[begin:end] - self._first_document[shard]
            found[begin:end] = self._shard(shard).first_pair[own] + self._first_pair[shard]
        return found

    def tokens_of(self, document: int, begin: int, end: int) -> NDArray[Any]:
        """Return tokens of a document, from number `begin` of all tokens to before `end`."""
        shard = int(np.searchsorted(self._first_document, document, side="right")) - 1
        first = int(self._first_pair[shard] + self._first_document[shard])
        return self._shard(shard).tokens[begin - first : end - first]

    def lengths(self) -> Iterator[NDArray[np.int64]]:
        """Yield the tokens of each document, [D] of a shard at a time."""
        for index in range(len(self.shards)):
            # Not through the cache: a pass over all shards would drop those that rows are read
            # from.
            yield np.diff(self._opened(index).first_pair) + 1

    def _opened(self, index: int) -> Shard:
        return Shard(self._folder, self.shards[index], self.dtype)


class TokenStoreDirectory:
    """A token store, opened: nothing but its manifest is read before it is asked for.

    Attributes:
        folder: Where it is.
        manifest: What it says about itself.
        splits: `train` and `validation`.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.splits = {
            name: StoredTokens(folder / "shards", manifest.splits[name], manifest.dtype)
            for name in SPLITS
        }

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer that made the tokens, from the store's own copy of its files."""
        tokenizer: Tokenizer = tokenizer_config(self.manifest, self.folder).build()
        return tokenizer

    def verify(self) -> Iterator[tuple[ShardInfo, bool]]:
        """Yield each shard, and whether its files are what was written."""
        for split in self.splits.values():
            for shard in split.shards:
                yield shard, shard_digest(self.folder / "shards", shard.name) == shard.digest

    def check_tokenizer(self, digest: str) -> None:
        """Check that the tokens are those of a tokenizer.

        Raises:
            DataError: Another one made them.
        """
        if digest != self.manifest.tokenizer_digest:
            raise DataError(
                f"The store's tokens are another tokenizer's: its digest is "
                f"{self.manifest.tokenizer_digest[:12]}, that of data.tokenizer {digest[:12]}.",
                where=str(self.folder),
                hint="Set data.tokenizer to what the store was built with "
                f"(`axcore data show {self.folder}`), or build a store with this one.",
            )

    def check_split(self, validation_fraction: float) -> None:
        """Check that as many documents are held out as a run asks for.

        Raises:
            DataError: They are not.
        """
        held = self.manifest.validation_fraction
        if held != validation_fraction:
            raise DataError(
                f"The store was built with validation_fraction={held}, and the data's is "
                f"{validation_fraction}.",
                where=str(self.folder),
                hint=f"--set data.validation_fraction={held}, or build another store.",
            )


def open_store(folder: str | Path) -> TokenStoreDirectory:
    """Open a store.

    Raises:
        DataError: There is none, or none that is whole.
    """
    root = Path(folder).expanduser()
    return TokenStoreDirectory(root, read_manifest(root))


def _sums(counts: list[int]) -> NDArray[np.int64]:
    return np.cumsum([0, *counts], dtype=np.int64)


def length_stats(split: StoredTokens) -> dict[str, float]:
    """Return documents, tokens, and the mean, shortest and longest document with percentiles.

    All lengths are read, a shard at a time; percentiles are exact. Empty where there is none.
    """
    documents_of: Counter[int] = Counter()
    for lengths in split.lengths():
        found, counts = np.unique(lengths, return_counts=True)
        documents_of.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))
    if not documents_of:
        return {}
    lengths = np.array(sorted(documents_of))
    up_to = np.cumsum([documents_of[int(length)] for length in lengths])
    wanted = [-(-int(up_to[-1]) * percent // 100) for percent in _PERCENTILES]
    return {
        "documents": split.num_documents,
        "tokens": split.num_tokens,
        "mean": split.num_tokens / split.num_documents,
        "shortest": int(lengths[0]),
        **{
            f"p{percent}": int(lengths[np.searchsorted(up_to, rank)])
            for percent, rank in zip(_PERCENTILES, wanted, strict=True)
        },
        "longest": int(lengths[-1]),
    }


class StoredSource(Source):
    """The documents of a token store.

    Its tokens are mapped into memory, so that opening it takes no time, whatever its size. They
    must be those of the data's own tokenizer, and split as the data ask.
    """

    @config
    class Config(Source.Config):
        """Which store.

        Attributes:
            path: Its folder, relative to the working directory.
        """

        path: str = REQUIRED

    folder_fields = ("path",)

    def open_tokens(self, tokenizer: Tokenizer, validation_fraction: float) -> Corpus:
        """Return the store's tokens.

        Raises:
            DataError: There is no store, or it was built with another tokenizer or split.
        """
        self._store.check_tokenizer(tokenizer_digest(tokenizer.config))
        self._store.check_split(validation_fraction)
        splits = self._store.splits
        return Corpus(splits["train"], splits["validation"])

    def documents(self) -> Iterator[Document]:
        """Yield every document as its tokens spell it, named by its split and number."""
        tokenizer = self._store.tokenizer()
        for name, split in self._store.splits.items():
            for index in range(split.num_documents):
                yield Document(f"{name}:{index}", tokenizer.decode(split.document(index)))

    def describe(self) -> str:
        """Name the store, and what it was built from."""
        return f"token store {self.config.path} of {self._store.manifest.source}"

    @cached_property
    def _store(self) -> TokenStoreDirectory:
        return open_store(self.config.path)
