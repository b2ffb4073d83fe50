"""`WarmUp`: several programs at once, stage by stage, and no more after a stop."""

import queue
import threading

import pytest

from axcore.inference.warm_up import Stage, WarmUp


def stages(*keys):
    return [Stage(None, (), tuple(of_stage)) for of_stage in keys]


def test_the_first_programs_and_the_others_are_compiled_several_at_once():
    pairs, used, ended = threading.Barrier(2), [], queue.SimpleQueue()
    warm_up = WarmUp(
        lambda key: pairs.wait(60), used.append, stages("ab", "cd", "cdef"), num_threads=4
    )
    warm_up.first()
    warm_up.start_others(ended.put)
    assert ended.get(timeout=60) is None
    assert [stage.keys for stage in used] == [tuple("cd"), tuple("cdef")]


def test_a_program_that_fails_is_reported_and_its_stage_is_not_used():
    used, ended = [], queue.SimpleQueue()

    def prepare(key):
        if key == "b":
            raise ValueError(key)

    warm_up = WarmUp(prepare, used.append, stages("a", "a", "abc"), num_threads=1)
    with pytest.raises(ValueError, match="b"):
        WarmUp(prepare, used.append, stages("b"), num_threads=1).first()
    warm_up.start_others(ended.put)
    assert isinstance(ended.get(timeout=60), ValueError)
    assert [stage.keys for stage in used] == [("a",)]


def test_a_stop_waits_for_what_is_compiled_and_begins_nothing():
    begun, go_on, ended = queue.SimpleQueue(), threading.Event(), queue.SimpleQueue()

    def prepare(key):
        begun.put(key)
        assert go_on.wait(60)

    warm_up = WarmUp(prepare, ended.put, stages("a", "bcdef"), num_threads=4)
    warm_up.start_others(ended.put)
    assert {begun.get(timeout=60), begun.get(timeout=60)} == {"b", "c"}
    stopping = threading.Thread(target=warm_up.stop)
    stopping.start()
    while not warm_up._is_stopped:
        pass
    go_on.set()
    stopping.join(60)
    assert not stopping.is_alive()
    assert begun.empty()
    assert ended.empty()
