"""Keyed permutations: any place of a shuffled order is computed, none is stored.

A number below n is read as two digits, of a and of b values with a * b >= n; each round adds a hash
of one digit to the other, which can be undone. What falls on n or beyond is permuted again.

Source: Black and Rogaway 2002, "Ciphers with arbitrary finite domains", the generalised Feistel.

Documents end to end in a shuffled order, in which any pair of tokens is found at once: the
documents, as they are stored, are cut into `NUM_STRETCHES` stretches of equal length. A group takes
`RUN` consecutive documents of each, and is shuffled within; so its neighbors come from all over the
corpus. Every stretch is read round and round from a place of its own, which the key decides, so
that other documents meet in a group under another key.

How many pairs come before group k is a sum over stretches of what the store knows anyway: of each
document the number of its first pair. So nothing is computed ahead, and nothing is stored.

Shape letters: G groups, S stretches, R documents of a group.
"""

from functools import lru_cache
from hashlib import blake2b
from math import isqrt

import attrs
import numpy as np
from numpy.typing import NDArray

from axcore.data.packing.packing import Pairs, TokenReader, join_tokens
from axcore.errors import DataError

LARGEST = 1 << 62
# Three pairs of rounds. Fewer leave neighbors related; each
# round costs a few multiplications per row that is read.
_ROUNDS = 6
_MASK = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


NUM_STRETCHES = 16
# Sixteen neighbors are read from one place of the disk; 16 stretches mix
# 256 documents, which is enough for them to be from all over the corpus.
RUN = 16
_FAN_OUT = 64
_NUM_CACHED_NODES = 4096
_NUM_CACHED_GROUPS = 256


class Permutation:
    """The numbers below `size` in an order that a key decides: a bijection, in no memory."""

    def __init__(self, size: int, key: str) -> None:
        """Prepare the rounds.

        Args:
            size: How many numbers, up to 2^62.
            key: Any text.

        Raises:
            DataError: There are more.
        """
        if not 0 <= size <= LARGEST:
            raise DataError(
                f"{size} numbers are to be shuffled; at most {LARGEST} can be.",
                where="data.shuffle",
                hint="--set data.shuffle=false, or a longer data.seq_len",
            )
        self._size = size
        self._left = isqrt(max(size - 1, 0)) + 1
        self._right = max(1, -(-size // self._left))
        self._keys = [hashed(f"{key} {number}") for number in range(_ROUNDS)]

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: int, /) -> int:
        """Return the number at a place.

        Raises:
            IndexError: There is no such place.
        """
        if not 0 <= place < self._size:
            raise IndexError(place)
        number = self._permuted(place)
        # Cycle walking: a * b is a little larger than `size`. It ends, as every cycle comes back to
        # the number below `size` that it started from.
        while number >= self._size:
            number = self._permuted(number)
        return number

    def _permuted(self, number: int) -> int:
        left, right = divmod(number, self._right)
        for index in range(0, _ROUNDS, 2):
            left = (left + _mixed(right + self._keys[index])) % self._left
            right = (right + _mixed(left + self._keys[index + 1])) % self._right
        return left * self._right + right


def shuffled(size: int, key: int) -> NDArray[np.int64]:
    """Return the numbers below a small `size` in an order that a key decides, all at once.

    Keys that follow each other have unrelated orders.
    """
    mixed = np.arange(size, dtype=np.uint64) + np.uint64(_mixed(key & _MASK))
    mixed *= np.uint64(_ODD)
    for shift, factor in zip((30, 27), _MIX, strict=True):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return np.argsort(mixed, kind="stable")


def hashed(what: str) -> int:
    """Return 64 bits that a text decides."""
    return int.from_bytes(blake2b(what.encode(), digest_size=8).digest(), "big")


def _mixed(value: int) -> int:
    """Return 64 bits that look unlike those of a neighbor.

    Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators".
    """
    value = (value * _ODD) & _MASK
    value = ((value ^ (value >> 30)) * _MIX[0]) & _MASK
    value = ((value ^ (value >> 27)) * _MIX[1]) & _MASK
    return value ^ (value >> 31)


@attrs.frozen
class DocumentShuffle:
    """What decides the order of documents.

    Attributes:
        seed: Any text.
        is_each_epoch: Whether each epoch has an order of its own.
    """

    seed: str
    is_each_epoch: bool

    def key(self, epoch: int) -> str:
        """Return the key of an epoch's order."""
        return f"{self.seed} epoch {epoch if self.is_each_epoch else 0}"


@attrs.frozen(eq=False)
class _Group:
    """The documents of a group in their order.

    Attributes:
        documents: [R] their numbers in the store.
        first_token: [R] the number of each one's first token.
        first_pair: [R + 1] how many pairs of the group come before each, then its pairs.
    """

    documents: NDArray[np.int64]
    first_token: NDArray[np.int64]
    first_pair: NDArray[np.int64]


class DocumentOrder:
    """All documents of a store in the order that a key decides."""

    def __init__(self, store: TokenReader, key: str) -> None:
        """Prepare the order.

        Args:
            store: The documents.
            key: Any text; another key is another order.
        """
        self._store = store
        self._key = hashed(f"documents {key}")
        total = store.num_documents
        count, run = (NUM_STRETCHES, RUN) if total >= NUM_STRETCHES * RUN else (1, total or 1)
        self._run = run
        self._length = total // count
        self._bases = np.arange(count, dtype=np.int64) * self._length
        self._begins = self._bases + np.array(
            [hashed(f"{key} {number}") % max(self._length, 1) for number in range(count)], np.int64
        )
        self._num_groups = -(-self._length // run)
        self._edges = tuple(
            store.first_pairs(places)
            for places in (self._bases, self._begins, self._bases + self._length)
        )
        self._cached_node = lru_cache(_NUM_CACHED_NODES)(self._node)
        self._cached_group = lru_cache(_NUM_CACHED_GROUPS)(self._group)

    def read(self, begin: int, end: int) -> Pairs:
        """Return the pairs from number `begin` to before `end`, at least one, in this order."""
        group, before = self._find(begin)
        tokens, counts = [], []
        while begin < end:
            found = self._cached_group(group)
            size = int(found.first_pair[-1])
            first, last = begin - before, min(end - before, size)
            one = int(np.searchsorted(found.first_pair, first, side="right")) - 1
            while first < last:
                start, stop = (int(pair) for pair in found.first_pair[one : one + 2])
                stop = min(stop, last)
                token = int(found.first_token[one]) + first - start
                tokens.append(
                    self._store.tokens_of(
                        int(found.documents[one]), token, token + stop - first + 1
                    )
                )
                counts.append(stop - first)
                first, one = stop, one + 1
            begin, before, group = before + last, before + size, group + 1
        joined = tokens[0] if len(tokens) == 1 else join_tokens(tokens)
        return Pairs(joined, np.array(counts, np.int64))

    def _find(self, pair: int) -> tuple[int, int]:
        """Return the group that a pair is in, and how many pairs come before that group."""
        stride = 1
        while stride * _FAN_OUT < self._num_groups + 1:
            stride *= _FAN_OUT
        group = before = 0
        while stride:
            sums = self._cached_node(group, stride)
            step = int(np.searchsorted(sums, pair, side="right")) - 1
            group, before = group + step * stride, int(sums[step])
            stride //= _FAN_OUT
        return group, before

    def _node(self, first: int, stride: int) -> NDArray[np.int64]:
        """Return how many pairs come before every `stride`-th group from `first` on."""
        last = min(first + _FAN_OUT * stride, self._num_groups + 1)
        return self._pairs_before(np.arange(first, last, stride, dtype=np.int64))

    def _pairs_before(self, groups_G: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many pairs come before groups."""
        base_S1, begin_S1, end_S1 = (pairs[:, None] for pairs in self._edges)
        stop_SG = self._begins[:, None] + np.minimum(groups_G * self._run, self._length)
        is_round_SG = stop_SG > self._bases[:, None] + self._length
        stop_SG = np.where(is_round_SG, stop_SG - self._length, stop_SG)
        found_SG = self._store.first_pairs(stop_SG.ravel()).reshape(stop_SG.shape)
        round_SG = np.where(is_round_SG, end_S1 - base_S1, 0)
        sums: NDArray[np.int64] = (found_SG - begin_S1 + round_SG).sum(axis=0)
        return sums

    def _group(self, number: int) -> _Group:
        """Return a group; the one after the last holds what stretches of equal length leave."""
        documents = self._members(number)
        edges = self._store.first_pairs((documents[:, None] + np.arange(2)).ravel())
        order = shuffled(len(documents), self._key + number)
        first, after = edges[::2][order], edges[1::2][order]
        documents = documents[order]
        sums = np.zeros(len(order) + 1, np.int64)
        np.cumsum(after - first, out=sums[1:])
        return _Group(documents, first + documents, sums)

    def _members(self, number: int) -> NDArray[np.int64]:
        if number == self._num_groups:
            return np.arange(len(self._bases) * self._length, self._store.num_documents)
        read = np.arange(number * self._run, min((number + 1) * self._run, self._length))
        offset_S1 = (self._begins - self._bases)[:, None]
        members: NDArray[np.int64] = (
            self._bases[:, None] + (offset_S1 + read) % self._length
        ).ravel()
        return members
