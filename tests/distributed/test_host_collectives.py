"""Processes wait for one another by name, and what goes wrong in one is known to all."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from several_processes import finish, start_all

from axcore.distributed import (
    all_gather_object,
    all_gather_str,
    barrier,
    broadcast_object,
    is_process_zero,
    process_count,
    process_index,
    shard_for_process,
)

WORKER = Path(__file__).with_name("processes_worker.py")
MEMBERS = Path(__file__).with_name("members_worker.py")


@pytest.fixture(scope="module")
def two():
    """What two processes saw, and how they ended when each left on its own."""
    ended = [finish(one) for one in start_all(WORKER, "leave", count=2)]
    return ended, [json.loads(one.stdout.splitlines()[0]) for one in ended]


@pytest.fixture(scope="module", params=[3, 12])
def many(request):
    """What the calls of a number of processes returned, and how much they sent."""
    command = [sys.executable, str(MEMBERS), str(request.param)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return request.param, json.loads(ran.stdout)


def test_messages_of_a_process_do_not_grow_with_the_run(many):
    count, found = many
    decided, most_of_any, most_of_others = found["decide"]
    assert decided == [max(map(str, range(count)))] * count
    assert most_of_others == 3  # its text, the barrier, the answer
    assert most_of_any <= 5  # process 0 reads all in one request, and deletes the round before
    assert found["broadcast"] == [["made"] * count, 1, 1]
    _, most_of_any, most_of_others = found["barrier"]
    assert (most_of_any, most_of_others) == (1, 1)


def test_all_name_who_is_late(many):
    count, found = many
    late = f"processes {count - 2}, {count - 1} of {count} did not reach 'step 4' within 0.5 s"
    own = "this process came to 'step 4' when the others had waited 0.5 s and given up"
    assert found["late"] == [late] * (count - 2) + [own] * 2


def test_no_key_is_left_after_the_next_barrier(many):
    count, found = many
    assert found["keys left"] == count + 1  # those of the barrier that failed, which ends a run


@pytest.mark.slow
def test_texts_are_gathered_in_order_time_after_time(two):
    for told in two[1]:
        assert told["count"] == 2
        assert told["gathered"] == [["00", "10"], ["01", "11"], ["02", "12"]]
        assert told["each"] == [10, 11]
    assert [told["first"] for told in two[1]] == [True, False]


@pytest.mark.slow
def test_what_the_first_makes_reaches_all(two):
    assert all(told["from first"] == [{"from": "0"}] * 2 for told in two[1])


def test_what_everybody_has_read_is_forgotten(two):
    assert all(told["keys left"] <= 6 for told in two[1])


def test_shared_work_is_done_once(two):
    assert [told["shared"] for told in two[1]] == [[0, 2, 4], [1, 3]]


def test_an_error_of_one_is_raised_in_all_as_what_it_was(two):
    wanted = ["CheckpointError", "no room", "/disk", "make room"]
    for told in two[1]:
        assert told["first refuses"] == wanted
        assert told["second refuses"] == wanted


def test_a_fault_of_one_is_its_own_and_the_others_are_told(two):
    first, second = two[1]
    assert first["first breaks"] == second["second breaks"] == ["as it is", "disk"]
    assert second["first breaks"][:2] == ["ProcessError", "process 0 failed at 'e': OSError: disk"]
    assert first["second breaks"][:2] == ["ProcessError", "process 1 failed at 'f': OSError: disk"]


def test_a_process_that_leaves_does_not_wait_for_the_others(two):
    assert two[0][0].exit_code == 7
    assert two[0][1].exit_code != 0  # 9, or jax's abort where process 0 was quicker


@pytest.mark.slow
def test_a_late_process_is_named_with_the_barrier_and_the_limit():
    first, second = (
        json.loads(finish(one).stdout.splitlines()[0]) for one in start_all(WORKER, "late", count=2)
    )
    assert first[:2] == ["ProcessError", "process 1 of 2 did not reach 'step 4' within 1 s"]
    assert second[:2] == [
        "ProcessError",
        "this process came to 'step 4' when the others had waited 1 s and given up",
    ]


def test_a_single_process_waits_for_nobody():
    barrier("alone")
    assert all_gather_str("alone", "text") == ["text"]
    assert broadcast_object("alone", lambda: {1}) == {1}
    assert all_gather_object("alone", lambda: {2}) == [{2}]
    assert shard_for_process([1, 2]) == [1, 2]
    assert (process_count(), process_index(), is_process_zero()) == (1, 0, True)
