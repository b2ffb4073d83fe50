"""Copies are what numpy's are, in every dtype and order, and find each number that is none."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from axcore.interop.host_arrays import are_same, copy, empty_array, is_finite, map_ahead

FLOATS = tuple(map(np.dtype, (np.float64, np.float32, np.float16, jnp.bfloat16, jnp.float8_e5m2)))
SHAPES = ((), (0,), (7,), (3, 5), (0, 4), (300, 1100), (2, 3, 40_000))


def drawn(shape, dtype):
    return np.asarray(np.random.default_rng(0).normal(size=shape), dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("target", FLOATS, ids=str)
def test_a_copy_has_the_bits_that_numpy_gives(shape, source, target):
    array = drawn(shape, source)
    for one in (array, array.T, array[..., ::2] if array.ndim else array):
        copied = empty_array(one.shape, target)
        assert copy(one, copied)
        assert are_same(copied, one.astype(target))


@given(st.integers(0, 299), st.integers(0, 1099), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_one_number_that_is_not_finite_is_found_wherever_it_is(row, column, bad):
    for dtype in (np.float32, jnp.bfloat16):
        array = np.ones((300, 1100), dtype)
        array[row, column] = bad
        assert not is_finite(array)
        assert not copy(array, np.empty_like(array))
        assert not copy(array.T, np.empty_like(array.T))
        assert not are_same(array, np.ones_like(array))


def test_numbers_that_a_dtype_cannot_hold_are_not_finite_there():
    assert not copy(np.full((2, 2), 1e6, np.float32), np.empty((2, 2), np.float16))
    assert not copy(np.full((2, 2), 1e6, np.float32), np.empty((2, 2), jnp.float8_e4m3fn))


def test_whole_numbers_are_always_finite():
    assert is_finite(np.full(3, -1))
    assert is_finite(np.array([True]))


def test_the_first_device_takes_an_array_over_without_a_copy():
    array = empty_array((1 << 18,), np.float32)
    array[:] = 1.0
    taken = jax.device_put(array, jax.devices("cpu")[0])
    assert taken.unsafe_buffer_pointer() == array.ctypes.data


def test_results_come_in_the_order_of_the_items_and_few_are_taken_ahead():
    taken, released = [], threading.Event()

    def items():
        for i in range(50):
            taken.append(i)
            yield i

    def slow_at_first(i):
        if i == 0:
            released.wait(60)
        return -i

    results = map_ahead(slow_at_first, items())
    threading.Timer(0.05, released.set).start()
    assert next(results) == 0
    assert len(taken) < 10
    assert list(results) == [-i for i in range(1, 50)]


def test_an_exception_of_a_thread_reaches_who_asks():
    with pytest.raises(ZeroDivisionError):
        list(map_ahead(lambda i: 1 // i, [1, 0]))
