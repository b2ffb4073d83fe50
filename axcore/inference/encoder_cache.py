"""`EncoderCache`: which inputs, such as pictures, have their soft tokens on the device.

The device keeps a table with a slot for each of some inputs. An input that several requests have is
encoded once. Each one that is encoded gets a number that none had before it, and the numbers of its
soft tokens follow from that. So texts of equal numbers have equal inputs, and the prefix cache
needs to know nothing of them.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from axcore.inference.request import EncoderInput, EncoderSpec, QueueFull
from axcore.layers import FIRST_SOFT_TOKEN

_LAST_TOKEN = 2**31 - 1
"""The largest number that a token can have, which is an int32."""


class Placed(NamedTuple):
    """Where the inputs of a request are.

    Args:
        numbers: Of the inputs, in their order.
        new: Inputs to encode, and the slot of each.
    """

    numbers: tuple[int, ...]
    new: tuple[tuple[EncoderInput, int], ...]


class EncoderCache:
    """The slots of a table of inputs.

    Args:
        spec: Of the encoder.
        num_slots: Slots of the table.
    """

    def __init__(self, spec: EncoderSpec, num_slots: int) -> None:
        self._num_slots, self._num_tokens = num_slots, spec.num_tokens
        # Ordered by when they were asked for: the one that nobody has asked for the longest goes.
        self._numbers: OrderedDict[bytes, int] = OrderedDict()
        self._held: dict[int, int | None] = dict.fromkeys(range(num_slots))
        self._next = 0

    def place(self, inputs: Sequence[EncoderInput], used: Collection[int]) -> Placed:
        """Return where inputs are, some of them from now on.

        Args:
            inputs: Of a request.
            used: Numbers of inputs that other requests need.

        Raises:
            QueueFull: No slot is free for one; nothing has changed.
        """
        wanted = {one.digest: one for one in inputs}
        known = {self._numbers[digest] for digest in wanted if digest in self._numbers}
        missing = [one for digest, one in wanted.items() if digest not in self._numbers]
        slots = self._free_slots({*used, *known})
        if len(slots) < len(missing):
            raise QueueFull(
                f"all {self._num_slots} slots of the encoder's cache have inputs of unfinished "
                "requests"
            )
        new = []
        for one, slot in zip(missing, slots, strict=False):
            before = self._held[slot]
            for digest in [name for name, number in self._numbers.items() if number == before]:
                del self._numbers[digest]
            # The next number that has this slot in the table, which is counted around.
            number = self._next + (slot - self._next) % self._num_slots
            self._next = number + 1
            self._held[slot] = self._numbers[one.digest] = number
            new.append((one, slot))
        for digest in wanted:
            self._numbers.move_to_end(digest)
        return Placed(tuple(self._numbers[one.digest] for one in inputs), tuple(new))

    def numbered(self, text: np.ndarray, numbers: Sequence[int]) -> np.ndarray:
        """Return a text whose soft tokens have the numbers by which the table knows them.

        Args:
            text: With those of a request, which count from its first input.
            numbers: Of the request's inputs.
        """
        soft = text >= FIRST_SOFT_TOKEN
        count = self._num_tokens
        own = text[soft] - FIRST_SOFT_TOKEN
        firsts = np.asarray(numbers, np.int64) * count
        changed = text.copy()
        changed[soft] = FIRST_SOFT_TOKEN + firsts[own // count] + own % count
        return changed

    @property
    def is_spent(self) -> bool:
        """Whether numbers begin again soon: then the prefix cache must be cleared with `clear`."""
        most = (_LAST_TOKEN - FIRST_SOFT_TOKEN) // self._num_tokens
        return self._next + 2 * self._num_slots >= most

    def clear(self) -> None:
        """Forget all inputs, as when weights are replaced; requests keep the slots that they use."""
        self._numbers.clear()
        if self.is_spent:
            self._next = 0

    def _free_slots(self, used: Collection[int]) -> list[int]:
        """Return slots that nobody needs: empty ones first, then those asked for long ago."""
        order = {number: place for place, number in enumerate(self._numbers.values())}
        free = [slot for slot, number in self._held.items() if number not in used]
        return sorted(free, key=lambda slot: (order.get(self._held[slot], -1), slot))  # type: ignore[call-overload]
