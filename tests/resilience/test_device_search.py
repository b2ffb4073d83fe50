"""The device whose place decides what comes out is found by exchanging others."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from axcore.resilience.device_search import DeviceSearch, differing_places


class Faulty:
    """A program of which one device gets its part wrong, in places where that shows.

    Args:
        device: The wrong one.
        num: Of places.
        spread: Over how many places, from its own on, the wrong bits spread.
        shows: At which places its fault changes anything.
    """

    def __init__(self, device, num, spread, shows=None):
        self.device, self.num, self.spread = device, num, spread
        self.shows = set(range(num) if shows is None else shows)
        self.runs = 0

    def __call__(self, order):
        self.runs += 1
        rows = [[place, 0] for place in range(self.num)]
        if self.device is not None and (own := order.index(self.device)) in self.shows:
            for step in range(self.spread):
                rows[(own + step) % self.num][1] = 1 + own
        return tuple(map(tuple, rows))


def search_of(processes, each):
    return DeviceSearch([range(at * each, (at + 1) * each) for at in range(processes)])


def fault_of(search, program):
    found = [program(order) for order in search.orders]
    assume(found[0] != found[1])
    return search.at_fault(program, found)


@given(st.data(), st.integers(1, 4), st.integers(3, 9))
def test_a_device_whose_fault_shows_everywhere_is_found(data, processes, each):
    num = processes * each
    device, spread = data.draw(st.integers(0, num - 1)), data.draw(st.integers(1, num))
    assert fault_of(search_of(processes, each), Faulty(device, num, spread)) == [device]


@given(st.data(), st.integers(1, 4))
def test_of_two_devices_of_a_process_both_are_named(data, processes):
    num = processes * 2
    device, spread = data.draw(st.integers(0, num - 1)), data.draw(st.integers(1, num))
    pair = [device // 2 * 2, device // 2 * 2 + 1]
    assert fault_of(search_of(processes, 2), Faulty(device, num, spread)) == pair


@given(st.data(), st.integers(1, 3), st.integers(3, 6))
def test_a_device_whose_fault_shows_at_some_places_is_found(data, processes, each):
    num = processes * each
    device, spread = data.draw(st.integers(0, num - 1)), data.draw(st.integers(1, num))
    shows = data.draw(st.sets(st.integers(0, num - 1)))
    program = Faulty(device, num, spread, shows)
    assert fault_of(search_of(processes, each), program) == [device]


@given(st.integers(3, 16))
def test_nobody_is_found_where_any_other_order_gives_other_bits(num):
    search = search_of(1, num)
    program = lambda order: tuple((one,) for one in order)  # noqa: E731 - as sums in a ring
    assert search.at_fault(program, [program(order) for order in search.orders]) == []


@pytest.mark.parametrize(("num", "most"), [(8, 5), (256, 10)])
def test_each_run_rules_out_half_of_the_devices(num, most):
    search, program = search_of(1, num), Faulty(5, num, num)
    found = [program(order) for order in search.orders]
    program.runs = 0
    assert search.at_fault(program, found) == [5]
    assert program.runs <= most


def test_every_device_has_another_place_in_the_second_order():
    own, exchanged = search_of(2, 3).orders
    assert own == (0, 1, 2, 3, 4, 5)
    assert exchanged == (1, 2, 0, 4, 5, 3)
    assert differing_places([(one,) for one in own], [(one,) for one in exchanged]) == list(own)
