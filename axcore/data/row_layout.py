"""Layouts of rows that leave documents whole: several to a row, or one.

A document of more than a row's pairs is cut into rows, and only its last piece shares one. Which
pieces are in which row is an index: of each piece its first pair and its pairs, sorted by row, and
of each row its first piece.
"""

from pathlib import Path
from typing import Literal

import attrs
import numpy as np
from numpy.typing import NDArray

from axcore.data.concatenation import Concatenated
from axcore.data.document_order import DocumentShuffle
from axcore.data.packing import Pairs, RowLayout, TokenReader
from axcore.data.whole_files import whole_file

Packing = Literal["concatenate", "best_fit", "one_document"]

_KEPT_FROM = 100_000
"""Documents from which on an index is kept in the cache: making it takes a second in a million."""


def row_layout(
    store: TokenReader,
    seq_len: int,
    packing: Packing,
    *,
    cache: Path,
    shuffle: DocumentShuffle | None = None,
) -> RowLayout:
    """Returns the rows of a store.

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
    if store.num_documents < _KEPT_FROM:
        return PieceRows(store, _index(store, seq_len, packing))
    path = cache / f"{store.digest}-{packing}-{seq_len}.npy"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            np.save(file, _index(store, seq_len, packing).as_array())
    return PieceRows(store, PieceIndex.of_array(np.load(path, mmap_mode="r")))


@attrs.frozen(eq=False)
class PieceIndex:
    """Which pieces of documents are in which row.

    Attributes:
        begin: [P] the first pair of each piece.
        size: [P] its pairs.
        first_piece: [R + 1] the first piece of each row, then P.
    """

    begin: NDArray[np.int64]
    size: NDArray[np.int64]
    first_piece: NDArray[np.int64]

    def as_array(self) -> NDArray[np.int64]:
        """Returns everything in one array."""
        return np.concatenate([[len(self.begin)], self.begin, self.size, self.first_piece])

    @classmethod
    def of_array(cls, array: NDArray[np.int64]) -> "PieceIndex":
        """Returns what `as_array` was made of."""
        count = int(array[0])
        return cls(array[1 : count + 1], array[count + 1 : 2 * count + 1], array[2 * count + 1 :])


class PieceRows:
    """Rows of whole documents, or of the pieces of those that are longer than a row."""

    def __init__(self, store: TokenReader, index: PieceIndex) -> None:
        self._store = store
        self._index = index

    def __len__(self) -> int:
        return len(self._index.first_piece) - 1

    def pairs(self, row: int, /) -> Pairs:
        """Returns the pairs of a row."""
        row %= len(self)
        first, last = self._index.first_piece[row : row + 2]
        begins, sizes = self._index.begin[first:last], self._index.size[first:last]
        return Pairs.joined(
            [
                self._store.read(begin, begin + size)
                for begin, size in zip(begins.tolist(), sizes.tolist(), strict=True)
            ]
        )


def _index(store: TokenReader, seq_len: int, packing: Packing) -> PieceIndex:
    parts: list[tuple[NDArray[np.int64], ...]] = []
    first_pair = 0
    for lengths in store.lengths():
        begin, size = _pieces(lengths - 1, seq_len)
        row = np.arange(len(size)) if packing == "one_document" else _best_fit(size, seq_len)
        parts.append((begin + first_pair, size, row))
        first_pair += int((lengths - 1).sum())
    return _joined(parts)


def _pieces(pairs: NDArray[np.int64], seq_len: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the first pair and the pairs of each piece of documents of so many pairs."""
    count = -(-pairs // seq_len)
    document = np.repeat(np.arange(len(pairs)), count)
    piece = np.arange(len(document)) - (np.cumsum(count) - count)[document]
    begin = (np.cumsum(pairs) - pairs)[document] + piece * seq_len
    return begin, np.minimum(pairs[document] - piece * seq_len, seq_len)


def _best_fit(size: NDArray[np.int64], seq_len: int) -> NDArray[np.int64]:
    """Returns the row of each piece: the fullest that has room for it, the longest piece first."""
    row_of = np.empty(len(size), np.int64)
    rows_with: list[list[int]] = [[] for _ in range(seq_len + 1)]
    has_rows = 0  # bit r: some row has room for exactly r pairs
    num_rows = 0
    for piece in np.argsort(-size, kind="stable").tolist():
        need = int(size[piece])
        fitting = has_rows >> need
        if fitting:
            room = need + (fitting & -fitting).bit_length() - 1
            row = rows_with[room].pop()
            if not rows_with[room]:
                has_rows ^= 1 << room
        else:
            room, row = seq_len, num_rows
            num_rows += 1
        row_of[piece] = row
        left = room - need
        if left:
            rows_with[left].append(row)
            has_rows |= 1 << left
    return row_of


def _joined(parts: list[tuple[NDArray[np.int64], ...]]) -> PieceIndex:
    """Returns the index of parts whose rows are numbered from 0 each."""
    begins, sizes, rows = zip(*parts, strict=True) if parts else ((), (), ())
    shifted, num_rows = [], 0
    for row in rows:
        shifted.append(row + num_rows)
        num_rows += int(row.max(initial=-1)) + 1
    all_rows = np.concatenate([np.zeros(0, np.int64), *shifted])
    order = np.argsort(all_rows, kind="stable")
    counts = np.bincount(all_rows, minlength=num_rows)
    return PieceIndex(
        np.concatenate([np.zeros(0, np.int64), *begins])[order],
        np.concatenate([np.zeros(0, np.int64), *sizes])[order],
        np.concatenate([[0], np.cumsum(counts)]),
    )
