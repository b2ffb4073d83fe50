"""`RowTable`: what the scheduler knows of each row that is served, as arrays over slots.

What changes in every step is here, so that a step costs the same few operations for any number of
rows.
"""

import numpy as np


class RowTable:
    """Arrays `[num_slots]`, unless they say otherwise.

    Args:
        num_slots: Rows that are served at once.
        max_length: Tokens of the longest text.
        page_size: Tokens of a page.
    """

    def __init__(self, num_slots: int, max_length: int, page_size: int) -> None:
        pages_per_row = -(-max_length // page_size)

        def ints() -> np.ndarray:
            return np.zeros(num_slots, np.int32)

        self.is_running = np.zeros(num_slots, bool)
        self.generation = np.zeros(num_slots, np.int64)
        """Counts the texts that a slot has had, so that late results are known as such."""
        self.order = np.zeros(num_slots, np.int64)
        """Of a smaller number comes first."""
        self.num_cached = ints()
        """Tokens whose keys and values all planned calls leave in the caches."""
        self.target = ints()
        """Tokens to read before the next one is drawn."""
        self.limit = ints()
        """Tokens that the text has at most."""
        self.num_known = ints()
        """Tokens of the text that came back from the device."""
        self.num_prompt = ints()
        self.num_pages = ints()
        self.num_digests = ints()
        self.one_by_one = np.zeros(num_slots, bool)
        """Whether each token has to be known before the next one is drawn."""
        self.text = np.zeros((num_slots, max_length), np.int32)
        """Tokens, `[num_slots, max_length]`."""
        self.page_table = np.zeros((num_slots, pages_per_row), np.int32)
        """Pages of each row, `[num_slots, pages_per_row]`."""

    def reading(self) -> np.ndarray:
        """Returns the slots whose texts are not read to their end, the first in order first."""
        slots = np.flatnonzero(self.is_running & (self.num_cached < self.target))
        return slots[np.argsort(self.order[slots])] if len(slots) > 1 else slots

    def decoding(self) -> np.ndarray:
        """Returns the slots that are to draw a token after one that was drawn."""
        cached = self.num_cached
        draws = self.is_running & (cached >= self.target) & (cached < self.limit - 1)
        return np.flatnonzero(draws)

    def set_pages(self, slot: int, first: int, pages: list[int]) -> None:
        """Writes pages of a row into its table, from the place `first` on."""
        self.page_table[slot, first : first + len(pages)] = pages
        self.num_pages[slot] = first + len(pages)
