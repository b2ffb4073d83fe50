"""What process 0 says, all others hear in its order; what fails in one is known to process 0."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from several_processes import finish, start_all

from axcore.distributed.message_tree import decoded, encoded

WORKER = Path(__file__).with_name("message_tree_worker.py")


@pytest.mark.parametrize(
    "value",
    [
        ["name", 3, 2.5, None, True, "text with \u00fc", b"\x00\xff"],
        {"key": [1, {2: [3]}], "": {}},
        np.arange(6, dtype=np.uint64).reshape(2, 3),
        np.zeros((0, 4), np.int32),
        np.array(1.5, np.float32),
        np.array([1, 2], ml_dtypes.bfloat16),
    ],
    ids=["plain", "dicts", "array", "empty", "scalar", "bfloat16"],
)
def test_a_message_comes_as_it_was_sent(value):
    found = decoded(encoded([value, value]))
    for one in found:
        if isinstance(value, np.ndarray):
            assert (one.dtype, one.shape) == (value.dtype, value.shape)
            np.testing.assert_array_equal(one, value)
        else:
            assert one == value


def test_tuples_come_as_lists_and_numbers_of_arrays_as_numbers():
    assert decoded(encoded((1, (np.int32(2), np.float32(0.5))))) == [1, [2, 0.5]]


def test_what_is_neither_json_nor_an_array_is_not_sent():
    with pytest.raises(TypeError, match="not JSON serializable"):
        encoded([object()])


@pytest.mark.slow
def test_all_hear_the_same_in_the_same_order():
    """Of six, process 5 is two hops away."""
    ended = [finish(one) for one in start_all(WORKER, "none", count=6)]
    assert [one.exit_code for one in ended] == [0] * 6, ended
    heard = [json.loads(one.stdout.splitlines()[-1])["heard"] for one in ended[1:]]
    assert all(one == heard[0] for one in heard)
    assert len(heard[0]) == 3
    assert "array([[0, 1, 2],\n       [3, 4, 5]], dtype=uint64)" in heard[0][1]


@pytest.mark.slow
def test_a_failure_two_hops_away_is_named_by_process_0():
    first, *_ = [finish(one) for one in start_all(WORKER, 5, count=6)]
    assert first.exit_code == 9
    error = json.loads(first.stdout.splitlines()[-1])["error"]
    assert error == "test: process 5 failed: it has no memory left"
