"""Which inputs have their soft tokens on the device, and by which numbers texts know them."""

import numpy as np
import pytest

from axcore.inference import EncoderInput
from axcore.inference.encoder_cache import EncoderCache
from axcore.inference.request import EncoderSpec
from axcore.layers import FIRST_SOFT_TOKEN

N = 3
INPUTS = [EncoderInput(np.full(2, number, np.float32)) for number in range(5)]


@pytest.fixture
def cache():
    return EncoderCache(EncoderSpec(np.zeros(2, np.float32), N, 2))


def text_of(numbers):
    """Return a row with all soft tokens of some inputs, and text around them."""
    soft = [FIRST_SOFT_TOKEN + number * N + n for number in numbers for n in range(N)]
    return np.array([7, *soft, 9], np.int32)


def read(cache, *numbers):
    """Return the slots that a call finds inputs in, and those that it encodes."""
    by_number = dict(enumerate(INPUTS))
    found, new = cache.placed(text_of(numbers)[None], [by_number])
    slots = (found[0][1:-1:N] - FIRST_SOFT_TOKEN) // N
    places = (found[0][1:-1] - FIRST_SOFT_TOKEN) % N
    assert places.tolist() == [*range(N)] * len(numbers)
    return slots.tolist(), [slot for _, slot in new]


def test_equal_inputs_have_one_number(cache):
    a, b, again = cache.numbers([INPUTS[0], INPUTS[1], EncoderInput(INPUTS[0].value.copy())])
    assert a == again != b
    assert cache.numbers([INPUTS[1]]) == (b,)


def test_inputs_are_equal_by_their_values_their_shape_and_their_dtype():
    zeros = EncoderInput(np.zeros(2, np.float32)).digest
    assert zeros == INPUTS[0].digest
    assert zeros != EncoderInput(np.zeros((2, 1), np.float32)).digest
    assert zeros != EncoderInput(np.zeros(4, np.float16)).digest


def test_a_text_is_numbered_by_its_inputs(cache):
    cache.numbers(INPUTS[:2])
    numbers = cache.numbers([INPUTS[3], INPUTS[1]])
    np.testing.assert_array_equal(cache.numbered(text_of([0, 1]), numbers), text_of(numbers))


def test_an_input_is_encoded_once(cache):
    assert read(cache, 0, 1) == ([0, 1], [0, 1])
    assert read(cache, 1) == ([1], [])
    assert read(cache, 1, 0) == ([1, 0], [])


def test_what_was_read_longest_ago_is_given_away(cache):
    read(cache, 0, 1)
    read(cache, 0)
    assert read(cache, 2) == ([1], [1])
    assert read(cache, 0) == ([0], [])
    assert read(cache, 1) == ([1], [1])


def test_a_call_keeps_what_it_reads_itself(cache):
    read(cache, 0)
    read(cache, 1)
    assert read(cache, 2, 0) == ([1, 0], [1])


def test_numbers_begin_again_before_they_leave_the_range_of_tokens(cache):
    cache._next = (2**31 - 1 - FIRST_SOFT_TOKEN) // N - 1
    assert [cache.has_room(count) for count in (1, 2)] == [True, False]
    (last,) = cache.numbers(INPUTS[:1])
    assert text_of([last]).max() < 2**31 - 1
    cache.restart()
    assert cache.numbers(INPUTS[:2]) == (0, 1)


def test_an_input_keeps_its_slot_where_its_number_is_given_again(cache):
    (before,) = cache.numbers(INPUTS[:1])
    cache.restart()
    (after,) = cache.numbers(INPUTS[1:2])
    assert before == after
    rows = np.stack([text_of([before])] * 2)
    found, new = cache.placed(rows, [{before: INPUTS[0]}, {after: INPUTS[1]}])
    assert [one.digest for one, _ in new] == [one.digest for one in INPUTS[:2]]
    assert found[0, 1] != found[1, 1]


def test_other_weights_have_other_numbers(cache):
    first = cache.numbers(INPUTS[:1])
    read(cache, 0)
    cache.forget_soft_tokens()
    assert cache.numbers(INPUTS[:1]) != first
    assert read(cache, 0) == ([0], [0])
