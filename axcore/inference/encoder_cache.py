"""`EncoderCache`: inputs such as pictures, their numbers in texts, and where their tokens are.

Each input that is not the same as one before gets a number that none had, and the numbers of its
soft tokens in a text follow from it. So texts of equal numbers have equal inputs, and neither the
scheduler nor the prefix cache needs to know of them.

The device keeps the soft tokens of the inputs that were read last, each in a slot of a table. An
input is encoded when a call reads tokens of it and the table does not have it. So as many requests
can wait as may wait, and one that lost its pages reads its inputs again.

Letters: N soft tokens of an input.
"""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from axcore.inference.request import EncoderInput, EncoderSpec
from axcore.layers import FIRST_SOFT_TOKEN

_LAST_TOKEN = 2**31 - 1
"""The largest number that a token can have, which is an int32."""

_MOST_NUMBERED = 1 << 16
"""Inputs whose numbers are known at once; one that is asked for after so many others gets a new
number, and pages with the old one are not found for it."""


class EncoderCache:
    """Numbers of inputs, and slots of a table; for one thread.

    Args:
        spec: Of the encoder.
    """

    def __init__(self, spec: EncoderSpec) -> None:
        self._num_slots, self._num_tokens = spec.num_slots, spec.num_tokens
        self._numbers: OrderedDict[bytes, int] = OrderedDict()
        # Ordered by when they were read: the slot that nobody has read for longest is given away.
        # By digests: a request keeps its input even where its number was given again.
        self._slots: OrderedDict[bytes, int] = OrderedDict()
        self._next = 0

    def numbers(self, inputs: Sequence[EncoderInput]) -> tuple[int, ...]:
        """Return the number of each input."""
        found = []
        for one in inputs:
            if one.digest not in self._numbers:
                self._numbers[one.digest] = self._next
                self._next += 1
            self._numbers.move_to_end(one.digest)
            found.append(self._numbers[one.digest])
        while len(self._numbers) > _MOST_NUMBERED:
            self._numbers.popitem(last=False)
        return tuple(found)

    def has_room(self, num_inputs: int) -> bool:
        """Whether so many inputs can get numbers; if not, `restart` and clear the prefix cache."""
        most = (_LAST_TOKEN - FIRST_SOFT_TOKEN) // self._num_tokens
        return self._next + num_inputs <= most

    def restart(self) -> None:
        """Forget the numbers of inputs and give them out again."""
        self._numbers.clear()
        self._next = 0

    def forget_soft_tokens(self) -> None:
        """Have all inputs encoded again: the weights are others."""
        # And with other numbers, as keys and values of the old ones are in pages.
        self._numbers.clear()
        self._slots.clear()

    def numbered(self, text: np.ndarray, numbers: Sequence[int]) -> np.ndarray:
        """Return a text whose soft tokens are numbered by the inputs' own numbers.

        Args:
            text: Whose soft tokens count from the first input of its request.
            numbers: Of the request's inputs.
        """
        return self._moved(text, dict(enumerate(numbers)))

    def placed(
        self, tokens: np.ndarray, inputs: Sequence[dict[int, EncoderInput]]
    ) -> tuple[np.ndarray, list[tuple[EncoderInput, int]]]:
        """Return tokens numbered by slots of the table, and what is to be encoded into which slot.

        Args:
            tokens: Of the rows of a call, `[rows, tokens]`.
            inputs: Of each row, by their numbers.
        """
        rows = list(zip(tokens, inputs, strict=False))
        read = [{number: of_row[number] for number in self._read(row)} for row, of_row in rows]
        needed = {one.digest: one for of_row in read for one in of_row.values()}
        for digest in needed:  # first all that are there, so that none of them is given away
            if digest in self._slots:
                self._slots.move_to_end(digest)
        new: list[tuple[EncoderInput, int]] = []
        for digest, one in needed.items():
            if digest not in self._slots:
                if len(self._slots) < self._num_slots:
                    slot = len(self._slots)
                else:
                    _, slot = self._slots.popitem(last=False)
                self._slots[digest] = slot
                new.append((one, slot))
        placed = tokens.copy()
        for row, of_row in enumerate(read):
            slots = {number: self._slots[one.digest] for number, one in of_row.items()}
            placed[row] = self._moved(tokens[row], slots)
        return placed, new

    def _read(self, row: np.ndarray) -> list[int]:
        """Return the numbers of the inputs that a row reads tokens of."""
        soft = row[row >= FIRST_SOFT_TOKEN]
        return sorted({int(one) for one in (soft - FIRST_SOFT_TOKEN) // self._num_tokens})

    def _moved(self, text: np.ndarray, to: dict[int, int]) -> np.ndarray:
        """Return a text whose soft tokens are those of other numbers."""
        soft = text >= FIRST_SOFT_TOKEN
        if not soft.any():
            return text
        before, place = np.divmod(text[soft] - FIRST_SOFT_TOKEN, self._num_tokens)
        after = np.array([to[int(one)] for one in before], text.dtype)
        changed = text.copy()
        changed[soft] = FIRST_SOFT_TOKEN + after * self._num_tokens + place
        return changed
