"""Batches prepared ahead are those that come without a thread, at every position."""

import json
import threading
from itertools import islice

import numpy as np
import pytest

from axcore.data import PrefetchedBatches, TrainBatches, data_loader
from axcore.data.packing.batches import DataShard, batches, train_order
from axcore.errors import DataError


class Numbers:
    """Rows that are their own numbers; one may fail, or wait to be let through."""

    def __init__(self, *, fails_at=None):
        self.gate = threading.Semaphore(10**6)
        self.made = 0
        self.fails_at = fails_at

    def __len__(self):
        return 100

    def batch(self, rows):
        self.gate.acquire()
        self.made += 1
        if self.fails_at == self.made:
            error = DataError("page 7 is torn", where="some file", hint="copy it")
            error.add_note("while reading page 7")
            raise error
        return {"number": np.array(rows)}


def ahead_of(rows, ahead=3):
    order = train_order(len(rows), seed=0, shuffle=True)
    plain = TrainBatches(batches(rows, order, DataShard(4)), {"name": "numbers"})
    return PrefetchedBatches(plain, ahead=ahead)


def numbers(found, count):
    return [batch["number"].tolist() for batch in islice(found, count)]


@pytest.fixture
def no_thread_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("ahead", [0, 1, 2, 9])
def test_a_position_is_that_of_the_batches_that_were_taken(ahead, no_thread_left):
    expected = numbers(ahead_of(Numbers(), 0), 70)
    one = ahead_of(Numbers(), ahead)
    taken = numbers(one, 26)
    state = json.loads(json.dumps(one.get_state()))
    assert taken + numbers(one, 44) == expected
    one.set_state(state)  # back, twice
    assert numbers(one, 10) == expected[26:36]
    one.set_state(state)
    assert one.get_state() == state
    assert numbers(one, 44) == expected[26:]
    other = ahead_of(Numbers(), 2)
    other.set_state(state)
    assert numbers(other, 3) == expected[26:29]
    one.close()
    other.close()


def test_a_closed_one_continues_where_it_was(no_thread_left):
    expected = numbers(ahead_of(Numbers(), 0), 20)
    one = ahead_of(Numbers())
    found = numbers(one, 7)
    one.close()
    assert found + numbers(one, 13) == expected
    one.close()


def test_no_more_batches_are_prepared_than_may_wait(no_thread_left):
    rows = Numbers()
    one = ahead_of(rows, ahead=3)
    numbers(one, 5)
    threading.Event().wait(0.2)
    assert 5 <= rows.made <= 8
    one.close()


def test_batches_are_there_before_they_are_asked_for(no_thread_left):
    rows = Numbers()
    one = ahead_of(rows, ahead=3)
    one.start()
    while rows.made < 3:
        threading.Event().wait(0.001)
    rows.gate = threading.Semaphore(0)  # from here on nothing is made
    assert len(numbers(one, 2)) == 2
    rows.gate.release(100)
    one.close()


def test_waiting_is_measured(no_thread_left):
    rows = Numbers()
    rows.gate = threading.Semaphore(0)
    one = ahead_of(rows)
    threading.Timer(0.2, rows.gate.release, [100]).start()
    next(one)
    assert one.waited_s > 0.15
    one.close()


class Panic(BaseException):
    """As native libraries raise, and no `Exception`."""


def test_what_is_no_exception_ends_the_wait_too(no_thread_left):
    rows = Numbers()
    rows.batch = lambda numbers: (_ for _ in ()).throw(Panic("in native code"))
    one = ahead_of(rows)
    with pytest.raises(Panic, match="in native code"):
        next(one)
    one.close()


@pytest.mark.parametrize("ahead", [0, 3])
def test_what_goes_wrong_is_raised_at_its_batch_with_its_type_and_notes(ahead, no_thread_left):
    one = ahead_of(Numbers(fails_at=6), ahead)
    expected = numbers(ahead_of(Numbers(), 0), 5)
    assert numbers(one, 5) == expected
    with pytest.raises(DataError, match="page 7 is torn") as e:
        next(one)
    assert (e.value.where, e.value.hint) == ("some file", "copy it")
    assert e.value.__notes__[0] == "while reading page 7"
    if ahead:
        assert e.value.__notes__[-1] == "while a batch was prepared ahead of its step"
        with pytest.raises(DataError, match="page 7 is torn"):
            next(one)  # and not the batch after it
    one.close()
    assert numbers(one, 1) != expected[:1]  # it continues after the five that were taken
    one.close()


def test_a_position_of_other_data_is_refused(no_thread_left):
    one = ahead_of(Numbers())
    found = numbers(one, 2)
    with pytest.raises(DataError, match="belongs to other training data: name was 'others'"):
        one.set_state({**one.get_state(), "data": {"name": "others"}})
    assert found + numbers(one, 3) == numbers(ahead_of(Numbers(), 0), 5)
    one.close()


def test_a_thread_that_does_not_end_is_left_behind_with_a_warning(monkeypatch, no_thread_left):
    monkeypatch.setattr(data_loader, "_LONGEST_STOP_S", 0.05)
    rows = Numbers()
    rows.gate = threading.Semaphore(0)
    one = ahead_of(rows)
    one.start()
    with pytest.warns(UserWarning, match="a thread still reads training data"):
        one.close()
    rows.gate.release(100)
    one.close()
