"""`DeviceSearch`: finds the device at fault by what comes out where devices exchange places.

A program is split into places, one for each device. What it computes does not depend on which
device has which place, unless a device computes wrongly: then it depends on the place of that one
alone. So the result stays what it is while others are exchanged, however far the fault spreads, and
half of the suspects are cleared by each run. Devices are exchanged within their process only.
"""

from collections.abc import Callable, Collection, Sequence

Order = tuple[int, ...]
"""The number of the device at each place."""

Rows = tuple[tuple[int, ...], ...]
"""What came out, by place."""


class DeviceSearch:
    """Searches among devices that are numbered by the places that they have at first.

    Args:
        processes: The numbers of each process's devices.
    """

    def __init__(self, processes: Sequence[Sequence[int]]) -> None:
        self._processes = processes
        self._all = {one for own in processes for one in own}
        self.orders = (self._exchanged(()), self._exchanged(self._all))
        """That of the program itself, and one in which every device has another place."""

    def at_fault(self, rows_of: Callable[[Order], Rows], found: Sequence[Rows]) -> list[int]:
        """Return the device at fault, or two of a process that has no third; none if unclear.

        Args:
            rows_of: Runs the program with devices in an order.
            found: What came out in each of `orders`; it differs.
        """
        near = [{order[place] for order in self.orders} for place in differing_places(*found)]
        nearby = sorted(set.intersection(*near))
        # A fault may spread to places of other devices, and may show in one of the orders only.
        for order, rows in zip(self.orders, found, strict=True):
            for suspects in (nearby, sorted(self._all)):
                if suspects and (fault := self._search(rows_of, order, rows, suspects)):
                    return fault
        return []

    def _search(
        self, rows_of: Callable[[Order], Rows], order: Order, rows: Rows, suspects: list[int]
    ) -> list[int]:
        """Return the device at fault among suspects; none where a run contradicts that."""

        def matters(moved: Collection[int]) -> bool:
            exchanged = self._exchanged(moved)
            return rows_of(tuple(exchanged[one] for one in order)) != rows

        found = suspects
        while moved := self._part(found):
            is_among = matters(moved)
            found = [one for one in found if (one in moved) == is_among]
        others = self._all - set(found)
        # Another device may be at fault, or the order itself.
        is_certain = matters(self._paired(set(found), others)) and not matters(others)
        return found if is_certain else []

    def _part(self, suspects: list[int]) -> set[int]:
        """Return devices to exchange, about half of the suspects among them; none if all are."""
        half = set(suspects[: len(suspects) // 2])
        moved = self._paired(self._paired(half, self._all - set(suspects)), set(suspects))
        return moved if set(suspects) - moved else set()

    def _paired(self, moved: set[int], partners: set[int]) -> set[int]:
        """Return devices, and a partner for each that is the only one of its process."""
        for own in self._processes:
            if len(moved & set(own)) == 1:
                moved = moved | set(sorted(partners & set(own) - moved)[:1])
        return moved

    def _exchanged(self, moved: Collection[int]) -> Order:
        """Return the order in which devices pass their places on, those of a process in a ring."""
        order = list(range(len(self._all)))
        for own in self._processes:
            ring = [one for one in own if one in moved]
            for place, device in zip(ring, [*ring[1:], *ring[:1]], strict=True):
                order[place] = device
        return tuple(order)


def differing_places(one: Rows, other: Rows) -> list[int]:
    """Return the places at which something else came out."""
    pairs = enumerate(zip(one, other, strict=True))
    return [place for place, (first, second) in pairs if first != second]
