"""Keyed permutations: any place of a shuffled order is computed, none is stored.

A number below n is read as two digits, of a and of b values with a * b >= n; each round adds a hash
of one digit to the other, which can be undone. What falls on n or beyond is permuted again.

Source: Black and Rogaway 2002, "Ciphers with arbitrary finite domains", the generalised Feistel.
"""

from hashlib import blake2b
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from axcore.errors import DataError

LARGEST = 1 << 62
_ROUNDS = 6
_MASK = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


class Permutation:
    """The numbers below `size` in an order that a key decides: a bijection, in no memory."""

    def __init__(self, size: int, key: str) -> None:
        """Prepares the rounds.

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
        """Returns the number at a place.

        Raises:
            IndexError: There is no such place.
        """
        if not 0 <= place < self._size:
            raise IndexError(place)
        number = self._permuted(place)
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
    """Returns the numbers below a small `size` in an order that a key decides, all at once.

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
    """Returns 64 bits that a text decides."""
    return int.from_bytes(blake2b(what.encode(), digest_size=8).digest(), "big")


def _mixed(value: int) -> int:
    """Returns 64 bits that look unlike those of a neighbour.

    Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators".
    """
    value = (value * _ODD) & _MASK
    value = ((value ^ (value >> 30)) * _MIX[0]) & _MASK
    value = ((value ^ (value >> 27)) * _MIX[1]) & _MASK
    return value ^ (value >> 31)
