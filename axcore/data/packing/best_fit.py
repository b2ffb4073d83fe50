"""Best-fit packing by counts: how many pieces there are of each size decides every row.

A document is cut into pieces of `seq_len` pairs and a last one; each piece is put where the least
room is left that takes it, the longest first. Pieces of one size are alike, so that rows are
counted, not made one by one: a pattern is a list of sizes and how many rows have it. Which pieces
of a size are in which row is a permutation over all of that size in the corpus.

Letters: P pieces, S sizes, from 0 to `seq_len`.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache

import attrs
import numpy as np
from numpy.typing import NDArray

from axcore.data.packing.packing import Pairs, TokenReader
from axcore.data.packing.shuffling import DocumentShuffle, Permutation

# One for each size of a usual row, of two epochs.
_NUM_CACHED_PERMUTATIONS = 1 << 14


@attrs.frozen
class Pattern:
    """Rows with equal sizes.

    Attributes:
        num_rows: How many.
        pieces: Sizes, the largest first, each with how many pieces of it a row has.
    """

    num_rows: int
    pieces: tuple[tuple[int, int], ...]


def count_sizes(lengths: Iterable[NDArray[np.int64]], seq_len: int) -> NDArray[np.int64]:
    """Return how many pieces there are of each size, [S], of documents of so many tokens."""
    # Sizes alone decide the rows: a corpus of any length is packed from `seq_len` numbers.
    counts = np.zeros(seq_len + 1, np.int64)
    for one in lengths:
        whole, rest = np.divmod(one - 1, seq_len)
        counts += np.bincount(rest, minlength=seq_len + 1)
        counts[seq_len] += whole.sum()
    # A document whose pairs fill full rows has no last piece.
    counts[0] = 0
    return counts


def fill_begins(
    begins_P: NDArray[np.int64],
    counts: NDArray[np.int64],
    pieces: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> None:
    """Write the first pair of every piece, those of a size together, in the corpus's order.

    Args:
        begins_P: Where to.
        counts: Of each size, [S].
        pieces: First pairs and sizes, many at a time.
    """
    next_of_size = np.cumsum(counts) - counts
    for begin, size in pieces:
        # Stable, so that pieces of one size stay in the corpus's order.
        order = np.argsort(size, kind="stable")
        found = np.bincount(size, minlength=len(counts))
        rank = np.arange(len(order)) - (np.cumsum(found) - found)[size[order]]
        begins_P[next_of_size[size[order]] + rank] = begin[order]
        next_of_size += found


def _patterns_of(counts: NDArray[np.int64]) -> list[Pattern]:
    """Return the rows of pieces of so many of each size, those opened first before others."""
    seq_len = len(counts) - 1
    with_room: list[list[Pattern]] = [[] for _ in range(seq_len + 1)]
    # A Python integer as a set of bits: the best fit is one shift and one mask.
    has_rows = 0  # bit r: some row has room for exactly r pairs
    for size in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[size])
        while left:
            fitting = has_rows >> size
            if fitting:
                # The lowest bit that is set: the fullest row that still takes the piece.
                room = size + (fitting & -fitting).bit_length() - 1
                pattern = with_room[room].pop()
                if not with_room[room]:
                    has_rows ^= 1 << room
            else:
                room, pattern = seq_len, Pattern(left, ())
            for filled in _filled(pattern, size, room, left):
                taken = sum(count for one, count in filled.pieces if one == size)
                left -= taken * filled.num_rows
                if filled.pieces:
                    with_room[room - taken * size].append(filled)
                    has_rows |= 1 << (room - taken * size)
    every = [(room, one) for room, patterns in enumerate(with_room) for one in patterns]
    # In an order that depends on nothing but sizes, as
    # the numbers of rows are part of saved positions.
    return [one for _, one in sorted(every, key=lambda pair: (-pair[1].pieces[0][0], pair[0]))]


def _filled(pattern: Pattern, size: int, room: int, left: int) -> Iterator[Pattern]:
    """Yield the rows of a pattern after pieces of a size were put in: full ones, one that is not
    where they run out, and those that got none."""
    max_count = room // size
    full = min(pattern.num_rows, left // max_count)
    rest = left - full * max_count if full < pattern.num_rows else 0
    if full:
        yield Pattern(full, (*pattern.pieces, (size, max_count)))
    if rest:
        yield Pattern(1, (*pattern.pieces, (size, rest)))
    if others := pattern.num_rows - full - bool(rest):
        yield Pattern(others, pattern.pieces)


class BestFitRows:
    """Rows of full documents, and of pieces of those that are longer than a row."""

    def __init__(
        self,
        store: TokenReader,
        counts: NDArray[np.int64],
        begins_P: NDArray[np.int64],
        shuffle: DocumentShuffle | None,
    ) -> None:
        """Lay the rows out.

        Args:
            store: The documents.
            counts: Pieces of each size, [S].
            begins_P: As `fill_begins` wrote them.
            shuffle: Which pieces of a size are in which row; in the corpus's order where None.
        """
        self._store = store
        self._counts = counts
        self._begins = begins_P
        self._first_of_size = np.cumsum(counts) - counts
        self._patterns = _patterns_of(counts)
        self._first_row = np.cumsum([0, *(one.num_rows for one in self._patterns)])
        self._first_use = self._uses()
        self._order = lru_cache(_NUM_CACHED_PERMUTATIONS)(
            lambda size, epoch: (
                range(int(counts[size]))
                if shuffle is None
                else Permutation(int(counts[size]), f"{shuffle.key(epoch)} size {size}")
            )
        )

    def __len__(self) -> int:
        return int(self._first_row[-1])

    def pairs(self, row: int, /) -> Pairs:
        """Return the pairs of a row; rows beyond the last are those of the next epoch."""
        epoch, row = divmod(row, len(self))
        index = int(np.searchsorted(self._first_row, row, side="right")) - 1
        place = row - int(self._first_row[index])
        found = []
        for (size, count), first in zip(
            self._patterns[index].pieces, self._first_use[index], strict=True
        ):
            order = self._order(size, epoch)
            for number in range(first + place * count, first + (place + 1) * count):
                begin = int(self._begins[int(self._first_of_size[size]) + order[number]])
                found.append(self._store.read(begin, begin + size))
        return Pairs.joined(found)

    def _uses(self) -> list[list[int]]:
        """Return of each pattern which piece of its sizes it has first."""
        used = np.zeros(len(self._counts), np.int64)
        found = []
        for pattern in self._patterns:
            found.append([int(used[size]) for size, _ in pattern.pieces])
            for size, count in pattern.pieces:
                used[size] += count * pattern.num_rows
        return found
