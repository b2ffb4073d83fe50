"""Which source each row of a mixture comes from: a fixed sequence that keeps to the weights.

With weights w_k (integers of sum D), the sequence repeats after D rows, and among its first n rows
those of source k are fewer than one row away from n w_k / D, for every n and k. The source and the
number of a row are computed from its place alone.

Source: Tijdeman 1980, "The chairman assignment problem", Discrete Mathematics 32.
"""

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import gcd, inf, lcm

import attrs
import numpy as np
from numpy.typing import NDArray

LONGEST_PERIOD = 100_000


def integer_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """Return the smallest integers in the proportions of weights, as their decimals say."""
    # By its decimals: as a float, 0.1 is a fraction over 2**55.
    exact = [Fraction(str(weight)) for weight in weights]
    scale = lcm(*(weight.denominator for weight in exact))
    scaled = [int(weight * scale) for weight in exact]
    return tuple(weight // gcd(*scaled) for weight in scaled)


@attrs.frozen(eq=False)
class _Period:
    """One period of the sequence.

    Attributes:
        weights: Rows of each source.
        sources: [D] the source of each row.
        ranks: [D] how many rows of that source are before it.
        places: Of each source, where its rows are.
    """

    weights: tuple[int, ...]
    sources: NDArray[np.int64]
    ranks: NDArray[np.int64]
    places: tuple[NDArray[np.int64], ...]

    def place_of(self, source: int, number: int) -> float:
        """Return where row `number` of a source comes, in the endless sequence."""
        weight = self.weights[source]
        if not weight:
            return inf
        periods, rank = divmod(number, weight)
        return periods * len(self.sources) + int(self.places[source][rank])

    def counts(self, length: int) -> NDArray[np.int64]:
        """Return how many of the first `length` rows come from each source."""
        periods, rest = divmod(length, len(self.sources))
        within = np.bincount(self.sources[:rest], minlength=len(self.weights))
        return periods * np.array(self.weights) + within


@lru_cache(32)
def period(weights: tuple[int, ...]) -> _Period:
    """Return one period of the sequence of some weights."""
    sources = np.array(_sources(weights), np.int64)
    places = tuple(np.flatnonzero(sources == k) for k in range(len(weights)))
    ranks = np.empty(len(sources), np.int64)
    for of_source in places:
        ranks[of_source] = np.arange(len(of_source))
    return _Period(weights, sources, ranks, places)


def _sources(weights: tuple[int, ...]) -> list[int]:
    """Return the source of each row of a period.

    Before each row every source is owed what its weight says less what it had. Of those that are
    owed enough, the one whose limit comes first has the row.
    """
    used = [k for k, weight in enumerate(weights) if weight]
    if len(used) == 1:
        return used * weights[used[0]]
    num_rows, parts = sum(weights), 2 * len(used) - 2
    owed = dict.fromkeys(used, 0)  # times num_rows
    found = []
    for _ in range(num_rows):
        for k in used:
            owed[k] += weights[k]
        ready = [k for k in used if owed[k] * parts >= num_rows]
        chosen = min(ready, key=lambda k: (num_rows * (parts - 1) - owed[k] * parts) / weights[k])
        owed[chosen] -= num_rows
        found.append(chosen)
    return found


@attrs.frozen
class Phase:
    """A run of rows with the same weights.

    Attributes:
        begin: The place of its first row.
        weights: Integers, one for each source.
        before: Rows of each source in all phases before it.
    """

    begin: int
    weights: tuple[int, ...]
    before: tuple[int, ...]


class Schedule:
    """The sequence of sources, with weights that change at declared places and sources that end."""

    def __init__(
        self, changes: Sequence[tuple[int, tuple[int, ...]]], limits: Sequence[int | None]
    ) -> None:
        """Lay the phases out.

        Args:
            changes: Place and weights, from that place on; the first place is 0.
            limits: How many rows a source has at most; None for any number. After them, the others
                share its weight.
        """
        self._limits = limits
        self.phases: list[Phase] = []
        self.end: float = inf
        ends = [place for place, _ in changes[1:]] + [inf]
        before = np.zeros(len(limits), np.int64)
        for (begin, weights), end in zip(changes, ends, strict=True):
            before = self._lay_out(begin, end, weights, before)
        self._begins = [phase.begin for phase in self.phases]

    def row(self, place: int) -> tuple[int, int]:
        """Return the source of the row at a place, and which row of that source it is.

        Raises:
            IndexError: All sources have ended before.
        """
        if place >= self.end:
            raise IndexError(place)
        phase = self.phases[bisect_right(self._begins, place) - 1]
        one = period(phase.weights)
        periods, rest = divmod(place - phase.begin, len(one.sources))
        source = int(one.sources[rest])
        number = periods * phase.weights[source] + int(one.ranks[rest])
        return source, phase.before[source] + number

    def _lay_out(
        self, begin: int, end: float, weights: tuple[int, ...], before: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Add the phases from one change to the next; returns the rows of each source after."""
        while begin < end and begin < self.end:
            weights = self._of_those_left(weights, before)
            if not any(weights):
                self.end = begin
                return before
            self.phases.append(Phase(begin, weights, tuple(before.tolist())))
            stop = min(end, begin + self._first_to_end(weights, before))
            if stop == inf:
                return before
            before = before + period(weights).counts(int(stop) - begin)
            begin = int(stop)
        return before

    def _of_those_left(
        self, weights: tuple[int, ...], before: NDArray[np.int64]
    ) -> tuple[int, ...]:
        left = [
            weight if limit is None or had < limit else 0
            for weight, limit, had in zip(weights, self._limits, before.tolist(), strict=True)
        ]
        common = gcd(*left) or 1
        return tuple(weight // common for weight in left)

    def _first_to_end(self, weights: tuple[int, ...], before: NDArray[np.int64]) -> float:
        """Return after how many rows a source would come that has no row left."""
        one = period(weights)
        left = [
            one.place_of(k, limit - int(before[k]))
            for k, limit in enumerate(self._limits)
            if limit is not None and weights[k]
        ]
        return min(left, default=inf)
