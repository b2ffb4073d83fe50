"""Layouts of rows: documents end to end, cut where a row ends, or left whole.

Where they are left whole, a document of more than a row's pairs is cut into rows, and only its last
piece shares one. Where pieces begin is an index of eight or sixteen bytes a piece.
"""

import fcntl
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from axcore.data.packing.best_fit import BestFitRows, count_sizes, fill_begins
from axcore.data.packing.packing import Pairs, RowLayout, TokenReader
from axcore.data.packing.shuffling import DocumentOrder, DocumentShuffle
from axcore.whole_files import whole_file

Packing = Literal["concatenate", "best_fit", "one_document"]

# Below it, making the index takes less time than looking for a file.
_MIN_CACHED_DOCUMENTS = 100_000
"""Documents from which on an index is kept in the cache."""

_DTYPE = np.dtype("<i8")


_Allocate = Callable[[int], NDArray[np.int64]]
# The present epoch, and the next, which is read ahead.
_NUM_CACHED_EPOCHS = 2


def row_layout(
    store: TokenReader,
    seq_len: int,
    packing: Packing,
    *,
    cache: Path,
    shuffle: DocumentShuffle | None = None,
) -> RowLayout:
    """Return the rows of a store.

    Args:
        store: The documents.
        seq_len: Pairs of a row.
        packing: `concatenate` cuts documents wherever a row ends. `best_fit` puts each where the
            least room is left that takes it, the longest first. `one_document` puts each into rows
            of its own.
        cache: The folder where the index of a large store is kept.
        shuffle: What decides the order of documents before they are packed; None for that of the
            store.
    """
    if packing == "concatenate":
        return Concatenated(store, seq_len, shuffle)
    make = partial(_index, store, seq_len, packing)
    # In memory, and by every process for itself.
    if store.num_documents < _MIN_CACHED_DOCUMENTS:
        index = make(lambda size: np.empty(size, np.int64))
    else:
        index = _cached_index(cache / f"{store.digest}-{packing}-{seq_len}.index", make)
    if packing == "best_fit":
        return BestFitRows(store, index[: seq_len + 1], index[seq_len + 1 :], shuffle)
    begins, sizes = index.reshape(2, -1)
    return _PieceRows(store, begins, sizes)


class _PieceRows:
    """Rows of a piece of a document each."""

    def __init__(
        self, store: TokenReader, begins_P: NDArray[np.int64], sizes_P: NDArray[np.int64]
    ) -> None:
        """Take the first pair and the pairs of each piece, in the order of the corpus."""
        self._store = store
        self._begins = begins_P
        self._sizes = sizes_P

    def __len__(self) -> int:
        return len(self._begins)

    def pairs(self, row: int, /) -> Pairs:
        """Return the pairs of a row."""
        row %= len(self)
        begin = int(self._begins[row])
        return self._store.read(begin, begin + int(self._sizes[row]))


def _cached_index(path: Path, make: Callable[[_Allocate], Any]) -> NDArray[np.int64]:
    """Return an index that is kept in a file; of several processes one makes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        # One process of a machine makes the index; the others wait and share its pages.
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Looked at under the lock: another process may just have made it.
        if not path.exists():
            with whole_file(path) as file:
                # Made in the file itself, since it may be larger than memory.
                make(lambda size: np.memmap(file.name, _DTYPE, "w+", shape=(size,)))
    return np.asarray(np.memmap(path, _DTYPE, "r"))


def _index(
    store: TokenReader, seq_len: int, packing: Packing, allocate: _Allocate
) -> NDArray[np.int64]:
    """Make the index of a packing: nothing of the corpus but the index is in memory as a whole."""
    counts = count_sizes(store.lengths(), seq_len)
    num_pieces = int(counts.sum())
    if packing == "best_fit":
        index = allocate(len(counts) + num_pieces)
        index[: len(counts)] = counts
        fill_begins(index[len(counts) :], counts, _all_pieces(store, seq_len))
        return index
    index = allocate(2 * num_pieces)
    begins, sizes = index.reshape(2, -1)
    first = 0
    for begin, size in _all_pieces(store, seq_len):
        begins[first : first + len(begin)] = begin
        sizes[first : first + len(begin)] = size
        first += len(begin)
    return index


def _all_pieces(
    store: TokenReader, seq_len: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield first pairs and sizes of pieces, many at a time."""
    first_pair = 0
    for lengths in store.lengths():
        begin, size = _pieces(lengths - 1, seq_len)
        yield begin + first_pair, size
        first_pair += int((lengths - 1).sum())


def _pieces(pairs: NDArray[np.int64], seq_len: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first pair and the pairs of each piece of documents of so many pairs."""
    count = -(-pairs // seq_len)
    document = np.repeat(np.arange(len(pairs)), count)
    piece = np.arange(len(document)) - (np.cumsum(count) - count)[document]
    begin = (np.cumsum(pairs) - pairs)[document] + piece * seq_len
    return begin, np.minimum(pairs[document] - piece * seq_len, seq_len)


class Concatenated:
    """Documents one after another, cut every `seq_len` pairs; only the last row is not full."""

    def __init__(
        self, store: TokenReader, seq_len: int, shuffle: DocumentShuffle | None = None
    ) -> None:
        """Cut nothing yet.

        Args:
            store: The documents.
            seq_len: Pairs of a row.
            shuffle: What decides the order of documents; None for that of the store.
        """
        self._seq_len = seq_len
        self._num_pairs = store.num_tokens - store.num_documents
        self._order = lru_cache(_NUM_CACHED_EPOCHS)(
            lambda epoch: store if shuffle is None else DocumentOrder(store, shuffle.key(epoch))
        )

    def __len__(self) -> int:
        return -(-self._num_pairs // self._seq_len)

    def pairs(self, row: int, /) -> Pairs:
        """Return the pairs of a row; rows beyond the last are those of the next epoch."""
        epoch, row = divmod(row, len(self))
        begin = row * self._seq_len
        return self._order(epoch).read(begin, min(begin + self._seq_len, self._num_pairs))
