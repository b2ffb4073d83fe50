"""`DeviceSearch`: finds the device at fault by what comes out where devices exchange places.

A program is split into places, one for each device. What it computes does not depend on which
device has which place, unless a device computes wrongly: then it depends on the place of that one
alone, however far the fault spreads. So whoever was at one place in two runs that differ is not the
one, and each run rules out about half of the others. Devices exchange places within their process.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

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
        self._all = sorted(one for own in processes for one in own)
        self.orders = (self._exchanged(()), self._exchanged(self._all))
        """That of the program itself, and one in which every device has another place."""

    def at_fault(self, rows_of: Callable[[Order], Rows], found: Sequence[Rows]) -> list[int]:
        """Return the device at fault, or two of a process that has no third; none if unclear.

        Args:
            rows_of: Runs the program with devices in an order.
            found: What came out in each of `orders`; it differs.
        """
        runs = dict(zip(self.orders, found, strict=True))

        def suspects_after(moved: Collection[int]) -> list[int]:
            order = self._exchanged(moved)
            if order not in runs:
                runs[order] = rows_of(order)
            return self._suspects(runs)

        suspects = self._suspects(runs)
        fewer: list[int] | None = suspects
        while fewer is not None:
            suspects = fewer
            tried = map(suspects_after, self._halves(suspects))
            fewer = next((one for one in tried if len(one) < len(suspects)), None)
        # Nobody else has been ruled out by this one's staying where it is, which the order may
        # decide as well: all others move at once.
        suspects = suspects_after(set(self._all) - set(suspects))
        return suspects if len(suspects) <= 2 else []

    def _suspects(self, runs: Mapping[Order, Rows]) -> list[int]:
        """Return the devices whose places alone may have decided all that came out."""
        return [one for one in self._all if _may_decide(one, runs)]

    def _halves(self, suspects: Sequence[int]) -> Iterator[set[int]]:
        """Yield devices to exchange, so that one half of the suspects and not the other moves on.

        All of them but the first of each process get the places that they have in the second of
        `orders`. What came out there is known, so that one run says whether they are suspects.
        """
        if len(suspects) < 2:
            return
        middle = len(suspects) // 2
        for half in (suspects[:middle], suspects[middle:]):
            moved: set[int] = set()
            for own in self._processes:
                at = [place for place, one in enumerate(own) if one in half]
                if at:
                    # From the one before, whose place the first suspect takes.
                    moved |= {own[place] for place in range(at[0] - 1, at[-1] + 1)}
            yield moved

    def _exchanged(self, moved: Collection[int]) -> Order:
        """Return the order in which devices take the places before theirs, a process's in a ring.

        Those that stay are left out of the ring.
        """
        order = list(range(len(self._all)))
        for own in self._processes:
            ring = [one for one in own if one in moved]
            for place, device in zip(ring, [*ring[1:], *ring[:1]], strict=True):
                order[place] = device
        return tuple(order)


def _may_decide(device: int, runs: Mapping[Order, Rows]) -> bool:
    """Whether runs in which a device had the same place all gave the same."""
    by_place: dict[int, Rows] = {}
    return all(
        by_place.setdefault(order.index(device), rows) == rows for order, rows in runs.items()
    )


def differing_places(one: Rows, other: Rows) -> list[int]:
    """Return the places at which something else came out."""
    pairs = enumerate(zip(one, other, strict=True))
    return [place for place, (first, second) in pairs if first != second]
