"""The schedule of a pipeline: every meeting of stage, round and micro-batch takes place once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from axcore.parallel import PipelineSchedule

SCHEDULES = st.builds(
    PipelineSchedule,
    num_stages=st.integers(1, 5),
    num_micro_batches=st.integers(1, 9),
    num_rounds=st.integers(1, 4),
)


@given(SCHEDULES)
def test_every_meeting_takes_place_when_both_are_there(schedule):
    turns, micros = schedule.items()
    for (stage, turn, micro), tick in np.ndenumerate(schedule.ticks()):
        assert turns[tick, stage] == turn
        assert micros[tick, stage] == micro


@given(SCHEDULES)
def test_a_stage_does_one_thing_at_a_time(schedule):
    for ticks in schedule.ticks():
        assert len(set(ticks.flat)) == ticks.size


@given(SCHEDULES)
def test_work_is_handed_on_at_once(schedule):
    """From stage to stage in a tick, and from the last stage back to the first in one, too."""
    ticks = schedule.ticks()
    assert (np.diff(ticks, axis=0) == 1).all()
    assert (ticks[0, 1:] - ticks[-1, :-1] == 1).all()


@given(SCHEDULES)
def test_the_bubble_is_what_is_not_work(schedule):
    work = schedule.ticks().size
    total = schedule.num_ticks * schedule.num_stages
    assert schedule.bubble == pytest.approx(1 - work / total)
    assert schedule.is_last().sum() == schedule.num_micro_batches


@pytest.mark.parametrize(
    ("schedule", "bubble"),
    [
        (PipelineSchedule(1, 8), 0.0),
        (PipelineSchedule(4, 4), 3 / 7),
        (PipelineSchedule(4, 8), 3 / 11),
        (PipelineSchedule(4, 8, 2), 3 / 19),
        (PipelineSchedule(4, 8, 4), 3 / 35),
    ],
)
def test_bubbles_are_those_of_the_literature(schedule, bubble):
    """`(S - 1) / (M R + S - 1)` where the stages divide the micro-batches."""
    assert schedule.bubble == pytest.approx(bubble)
