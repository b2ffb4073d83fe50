"""Time from cycles and from rooflines."""

import attrs
import pytest

from axcore.aot.collectives import Collective
from axcore.aot.executions import executions
from axcore.aot.flops import Product
from axcore.aot.program import parse_program
from axcore.aot.times import costs, exposed_s, misses_loops, roofline_s
from axcore.plugins import Hardware

CHIP = Hardware(
    family="acme",
    chips=8,
    memory_bytes=2**30,
    peak_flops={"bfloat16": 1e12, "float8": 2e12},
    memory_bandwidth=1e9,
    interconnect_bandwidth=1e8,
)

CYCLES = """\
HloModule step, is_scheduled=true

%body (arg: (s32[], f32[512])) -> (s32[], f32[512]) {
  %arg = (s32[], f32[512]{0}) parameter(0)
  %i = s32[] get-tuple-element(%arg), index=0
  %x = f32[512]{0} get-tuple-element(%arg), index=1
  %y = f32[512]{0} negate(%x), backend_config={"window_config":{"estimated_cycles":"700"}}
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  ROOT %out = (s32[], f32[512]) tuple(%next, %y)
}

%condition (arg.1: (s32[], f32[512])) -> pred[] {
  %arg.1 = (s32[], f32[512]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%arg.1), index=0
  %limit = s32[] constant(10)
  ROOT %less = pred[] compare(%i.1, %limit), direction=LT
}

ENTRY %main (p: f32[512]) -> (s32[], f32[512]) {
  %p = f32[512]{0} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[512]{0}) tuple(%zero, %p)
  ROOT %loop = (s32[], f32[512]{0}) while(%start), condition=%condition, body=%body
}
"""


def test_cycles_add_up_over_loops_and_the_clock_makes_them_seconds():
    program = parse_program(CYCLES)
    with_clock = attrs.evolve(CHIP, clock_hz=1e6)
    found = costs(program, with_clock)
    assert sum(one.cycles for one in found) == 7000
    assert sum(one.seconds for one in found) == pytest.approx(7e-3)
    assert len(found) == len(tuple(executions(program)))


def test_cycles_without_a_clock_are_no_time():
    assert {one.seconds for one in costs(parse_program(CYCLES), CHIP)} == {None}


def test_a_roofline_is_the_longer_of_products_and_bytes():
    assert roofline_s((Product(1e12, "bf16", ""),), 1.0, CHIP) == pytest.approx(1.0)
    assert roofline_s((Product(1e12, "f8e4m3fn", ""),), 1.0, CHIP) == pytest.approx(0.5)
    assert roofline_s((Product(1e3, "bf16", ""),), 5e9, CHIP) == pytest.approx(5.0)


def test_a_device_has_its_share_of_a_chip():
    halves = attrs.evolve(CHIP, devices_per_chip=2)
    assert roofline_s((Product(1e12, "bf16", ""),), 1.0, halves) == pytest.approx(2.0)


def test_unknown_figures_give_no_time():
    assert roofline_s((), 1.0, Hardware.parse("cpu-8")) is None
    assert exposed_s((), 1.0, Hardware.parse("cpu-8")) is None
    assert exposed_s((), 1.0, Hardware.parse("cpu-1")) == 0.0


def test_hidden_collectives_cost_only_what_outlasts_the_work():
    one = Collective(
        kind="all-gather", op_name="", nbytes=8 * 10**8, group=8, times=1, is_hidden=True
    )
    alone = attrs.evolve(one, is_hidden=False)
    assert exposed_s((one,), 100.0, CHIP) == 0.0
    assert exposed_s((one,), 3.0, CHIP) == pytest.approx(7.0 - 3.0)
    assert exposed_s((alone,), 100.0, CHIP) == pytest.approx(7.0)


def test_a_step_faster_than_its_chips_is_no_prediction_where_loops_are_not_counted():
    assert misses_loops(14.7, 1)
    assert not misses_loops(0.94, 1)
    assert not misses_loops(1.2, 0)  # narrow products, over the peak of wide ones
    assert not misses_loops(None, 1)
