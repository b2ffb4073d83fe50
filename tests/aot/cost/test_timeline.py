"""When transfers arrive, played over the schedule of a program."""

import pytest

from axcore.aot.cost.timeline import Transfer, waits_s
from axcore.aot.hlo.program import parse_program

PROGRAM = """\
HloModule step, is_scheduled=true

%body (arg: (s32[], f32[8])) -> (s32[], f32[8]) {
  %arg = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%arg), index=0
  %x = f32[8]{0} get-tuple-element(%arg), index=1
  %in_start = f32[8]{0} copy(%x)
  %in_work = f32[8]{0} negate(%x)
  %in_done = f32[8]{0} copy(%in_start)
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  ROOT %out = (s32[], f32[8]{0}) tuple(%next, %in_work)
}

%condition (arg.1: (s32[], f32[8])) -> pred[] {
  %arg.1 = (s32[], f32[8]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%arg.1), index=0
  %limit = s32[] constant(10)
  ROOT %less = pred[] compare(%i.1, %limit), direction=LT
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %start_1 = f32[8]{0} copy(%p)
  %start_2 = f32[8]{0} copy(%p)
  %zero = s32[] constant(0)
  %first = (s32[], f32[8]{0}) tuple(%zero, %p)
  %loop = (s32[], f32[8]{0}) while(%first), condition=%condition, body=%body
  %done_1 = f32[8]{0} copy(%start_1)
  %work = f32[8]{0} negate(%done_1)
  %done_2 = f32[8]{0} copy(%start_2)
  ROOT %alone = f32[8]{0} negate(%done_2)
}
"""


def waits(work_s, *transfers):
    found = [Transfer(started=one, awaited=two, seconds=seconds) for one, two, seconds in transfers]
    return waits_s(parse_program(PROGRAM), work_s, found)


def test_what_nothing_runs_under_is_waited_for_whole():
    assert waits({"work": 9.0}, ("alone", "alone", 2.0)) == (2.0,)
    assert waits({}, ("start_1", "done_1", 3.0)) == (3.0,)


def test_work_between_start_and_end_hides_a_transfer_for_as_long_as_it_takes():
    assert waits({"in_work": 0.25}, ("in_start", "in_done", 0.75)) == (0.5,)
    assert waits({"in_work": 0.75}, ("in_start", "in_done", 0.25)) == (0.0,)
    assert waits({"work": 9.0}, ("in_start", "in_done", 0.25)) == (0.25,)


def test_a_loop_counts_with_all_its_rounds_and_their_waits():
    work = {"in_work": 0.25}
    assert waits(work, ("start_1", "done_1", 3.0)) == (pytest.approx(0.5),)
    hidden = waits(work, ("start_1", "done_1", 9.0), ("in_start", "in_done", 0.75))
    assert hidden == (pytest.approx(9.0 - 7.5), 0.5)


def test_transfers_queue_behind_one_another():
    work = {"in_work": 0.1, "work": 0.5}
    assert waits(work, ("start_1", "done_1", 2.0), ("start_2", "done_2", 2.0)) == (
        pytest.approx(1.0),
        pytest.approx(1.5),
    )
    assert waits(work, ("start_2", "done_2", 2.0)) == (pytest.approx(0.5),)
