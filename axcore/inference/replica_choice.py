"""Which replica takes a request. Plain values, without jax."""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from axcore.inference.engine_stats import EngineStats
from axcore.inference.pages import next_digest


class SentPrompts:
    """Full pages of the prompts that a replica was sent last; not for several threads.

    Args:
        page_size: Tokens of a page.
        most: Pages that are remembered, as many as the replica has.
    """

    def __init__(self, *, page_size: int, most: int) -> None:
        self._page_size, self._most = page_size, most
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def digests(self, prompt: Sequence[int], adapter: str | None = None) -> list[bytes]:
        """Returns digests of a prompt, read with an adapter, up to the end of each full page."""
        size, found = self._page_size, [(adapter or "").encode()]
        text = np.asarray(prompt, np.int64)
        for start in range(0, len(text) - size + 1, size):
            found.append(next_digest(found[-1], text[start : start + size]))
        return found[1:]

    def num_first(self, digests: Sequence[bytes]) -> int:
        """Returns how many first pages of a prompt the replica was sent."""
        return next((n for n, one in enumerate(digests) if one not in self._known), len(digests))

    def add(self, digests: Sequence[bytes]) -> None:
        """Remembers a prompt; forgets the pages sent longest ago where they are too many."""
        for digest in reversed(digests):
            self._known[digest] = None
            self._known.move_to_end(digest)
        while len(self._known) > self._most:
            self._known.popitem(last=False)

    def forget(self) -> None:
        """Forgets all pages."""
        self._known.clear()


def by_preference(stats: Sequence[EngineStats], held: Sequence[int]) -> list[int]:
    """Returns the numbers of replicas, the one that is to take a request first.

    Args:
        stats: Of each replica.
        held: First pages of the prompt that each was sent.
    """
    loads = [one.num_waiting + one.num_running for one in stats]

    def key(index: int) -> tuple[bool, int, int, int]:
        is_full = loads[index] >= stats[index].num_slots
        pages = -held[index]
        return (
            is_full,
            loads[index] if is_full else pages,
            pages if is_full else loads[index],
            index,
        )

    return sorted(range(len(stats)), key=key)
