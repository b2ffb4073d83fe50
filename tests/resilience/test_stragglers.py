"""A process that is slower than the others for long enough is named, and nobody else."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from several_processes import finish, start_all
from texts import write_text

from axcore.resilience import read_events
from axcore.resilience.stragglers import Stragglers, slower_by

usual = st.floats(0.95, 1.05)
scales = st.floats(0.05, 100)


@given(st.lists(st.lists(usual, min_size=4, max_size=4), min_size=1, max_size=20), scales)
def test_processes_that_take_about_as_long_are_never_named(rounds, scale):
    stragglers = Stragglers(mads=6, patience=1)
    assert [stragglers.report([scale * one for one in seconds]) for seconds in rounds] == [
        [] for _ in rounds
    ]


@given(
    st.integers(2, 8),
    st.integers(0, 7),
    st.integers(1, 5),
    st.lists(st.booleans(), min_size=1, max_size=25),
    scales,
)
def test_a_slow_process_is_named_after_so_many_reports_in_a_row_and_once(
    count, slow, patience, is_slow, scale
):
    slow %= count
    stragglers = Stragglers(mads=6, patience=patience)
    in_a_row = 0
    for now in is_slow:
        in_a_row = in_a_row + 1 if now else 0
        seconds = [scale] * count
        seconds[slow] *= 2 if now else 1
        assert stragglers.report(seconds) == ([slow] if in_a_row == patience else [])


@given(st.lists(st.floats(0.001, 10), min_size=3, max_size=8), st.randoms())
def test_the_order_of_processes_does_not_matter(seconds, random):
    order = list(range(len(seconds)))
    random.shuffle(order)
    shuffled = [seconds[at] for at in order]
    for new, old in enumerate(order):
        assert slower_by(shuffled, new) == pytest.approx(slower_by(seconds, old))


@given(st.lists(usual, min_size=3, max_size=8), st.floats(3, 50))
def test_one_slow_process_hides_no_other(seconds, factor):
    both = [factor * seconds[0], factor * seconds[1], *seconds[2:], *seconds[2:], *seconds[2:]]
    assert {0, 1} <= set(Stragglers(mads=6, patience=1).report(both))


def test_a_run_of_one_process_has_no_straggler():
    assert Stragglers(mads=1, patience=1).report([3.0]) == []


@pytest.mark.slow
def test_a_process_of_three_that_sleeps_at_each_step_is_named(tmp_path):
    write_text(tmp_path / "text", files=12)
    worker = Path(__file__).with_name("guarded_worker.py")
    started = start_all(worker, tmp_path, count=3)
    ended = [finish(process) for process in started]
    assert [one.exit_code for one in ended] == [0, 0, 0], ended
    events = [one for one in read_events(tmp_path / "run").events if one["event"] == "straggler"]
    assert {(event["straggler"], event["process"]) for event in events} == {(1, 0)}
    assert events[0]["own_s"] >= 2.0 > events[0]["others_s"]
    assert (
        "process 1 keeps the others waiting"
        in json.loads(ended[0].stdout.splitlines()[-1])["warnings"][0]
    )
