"""The sequence of a mixture's sources: never a row away from the weights, and its places add up."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from axcore.data.sources.schedule import Schedule, integer_weights, period

weights = st.lists(st.integers(0, 30), min_size=1, max_size=7).filter(any).map(tuple)


@given(weights)
def test_any_number_of_first_rows_is_less_than_one_row_from_the_weights(weights):
    sources = period(weights).sources
    total = sum(weights)
    counts = np.cumsum(np.eye(len(weights), dtype=int)[sources], axis=0)
    ideal = np.arange(1, total + 1)[:, None] * np.array(weights)
    assert (abs(counts * total - ideal) < total).all()
    assert counts[-1].tolist() == list(weights)


@given(weights, st.integers(0, 10**12))
def test_rows_of_a_source_come_in_order_wherever_one_looks(weights, begin):
    schedule = Schedule([(0, weights)], [None] * len(weights))
    rows = [schedule.row(begin + i) for i in range(200)]
    assert [row[0] for row in rows] == [
        int(period(weights).sources[(begin + i) % sum(weights)]) for i in range(200)
    ]
    for source in range(len(weights)):
        numbers = [number for k, number in rows if k == source]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
        seen = Fraction(begin * weights[source], sum(weights))
        assert not numbers or abs(numbers[0] - seen) <= 1


def test_weights_of_two_sources_hold_to_one_row_over_any_window():
    sources = np.tile(period((7, 3)).sources, 3)
    for length in range(1, 21):
        counts = [(sources[i : i + length] == 1).sum() for i in range(9)]
        assert all(abs(count - 0.3 * length) <= 1 for count in counts)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.tuples(*[st.integers(0, 9)] * 3)), max_size=4),
    st.tuples(*[st.integers(1, 9)] * 3),
    st.lists(st.none() | st.integers(0, 60), min_size=3, max_size=3),
)
def test_changes_and_limits_lose_no_row_and_repeat_none(changes, first, limits):
    places = np.cumsum([length for length, _ in changes]).tolist()
    found = [(0, first), *((p, w) for p, (_, w) in zip(places, changes, strict=True) if any(w))]
    schedule = Schedule(found, limits)
    seen, place = [0, 0, 0], 0
    while place < min(schedule.end, 400):
        source, number = schedule.row(place)
        assert number == seen[source]
        seen[source] += 1
        allowed = [w for begin, w in found if begin <= place][-1]
        assert allowed[source]
        place += 1
    assert all(limit is None or count <= limit for count, limit in zip(seen, limits, strict=True))
    if schedule.end < 400:
        last = [w for begin, w in found if begin <= schedule.end][-1]
        assert all(seen[k] == limits[k] for k in range(3) if last[k])
        with pytest.raises(IndexError):
            schedule.row(int(schedule.end))


def test_after_a_limit_the_others_share_what_is_left():
    schedule = Schedule([(0, (2, 1, 1))], [10, None, None])
    counts = Counter(schedule.row(place)[0] for place in range(10_020))
    assert counts[0] == 10
    assert abs(counts[1] - counts[2]) <= 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [([0.7, 0.2, 0.1], (7, 2, 1)), ([3, 1], (3, 1)), ([0.5], (1,)), ([1e-3, 0.999], (1, 999))],
)
def test_weights_are_what_their_decimals_say(given, expected):
    assert integer_weights(given) == expected
