"""Time from cycles and from rooflines."""

import attrs
import pytest

from axcore.aot.cost.operations import Product, custom_kernels
from axcore.aot.cost.times import (
    Transfer,
    costs,
    has_unknown_loops,
    kernel_s,
    roofline_s,
    transfer_s,
    waiting_s,
    waits_s,
)
from axcore.aot.hlo.collectives import Collective
from axcore.aot.hlo.loops import executions
from axcore.aot.hlo.program import parse_program
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


GATHERED = """\
HloModule step, is_scheduled=true

%fused (rows: f32[512,4], index: s32[256,1]) -> f32[256,4] {
  %rows = f32[512,4]{1,0} parameter(0)
  %index = s32[256,1]{1,0} parameter(1)
  ROOT %picked = f32[256,4]{1,0} gather(%rows, %index), offset_dims={1}
}

ENTRY %main (x: f32[512,4], i: s32[256,1]) -> f32[256,4] {
  %x = f32[512,4]{1,0} parameter(0)
  %i = s32[256,1]{1,0} parameter(1)
  %y = f32[512,4]{1,0} negate(%x), backend_config={"window_config":{"estimated_cycles":"700"}}
  ROOT %gathered = f32[256,4]{1,0} fusion(%y, %i), kind=kCustom, calls=%fused
}
"""


def test_rows_that_are_gathered_count_by_their_bytes_where_the_compiler_gives_no_cycles():
    with_clock = attrs.evolve(CHIP, clock_hz=1e6)
    found = {one.name: one for one in costs(parse_program(GATHERED), with_clock)}
    assert found["gathered"].cycles == 0
    assert found["gathered"].seconds == pytest.approx(found["gathered"].nbytes / 1e9)
    assert found["gathered"].nbytes == 2 * 256 * 4 * 4 + 256 * 4
    assert found["y"].seconds == pytest.approx(700e-6)


def test_cycles_without_a_clock_are_no_time():
    assert {one.seconds for one in costs(parse_program(CYCLES), CHIP)} == {None}


def test_a_roofline_is_the_longer_of_products_and_bytes():
    assert roofline_s((Product(1e12, "bf16", ""),), 1.0, CHIP) == pytest.approx(1.0)
    assert roofline_s((Product(1e12, "f8e4m3fn", ""),), 1.0, CHIP) == pytest.approx(0.5)
    assert roofline_s((Product(1e3, "bf16", ""),), 5e9, CHIP) == pytest.approx(5.0)


def test_a_device_has_its_share_of_a_chip():
    halves = attrs.evolve(CHIP, devices_per_chip=2)
    assert roofline_s((Product(1e12, "bf16", ""),), 1.0, halves) == pytest.approx(2.0)


def test_achievable_fractions_apply_to_the_figures_that_they_name():
    chip = attrs.evolve(
        CHIP,
        achievable_fraction={
            "bfloat16": 0.8,
            "memory": 0.5,
            "interconnect": 0.25,
            "attention": 0.4,
            "attention/acme_attention": 0.2,
        },
    )
    made = (Product(1e12, "bf16", ""),)
    assert roofline_s(made, 1.0, chip) == pytest.approx(1 / 0.8)
    assert roofline_s(made, 1.0, chip, role="attention") == pytest.approx(1 / 0.4)
    assert roofline_s(made, 1.0, chip, role="attention/acme_attention") == pytest.approx(1 / 0.2)
    assert roofline_s(made, 1.0, chip, role="attention/another") == pytest.approx(1 / 0.4)
    assert roofline_s(made, 1.0, chip, role="attention_backward") == pytest.approx(1 / 0.8)
    assert roofline_s((Product(1e12, "f8e4m3fn", ""),), 1.0, chip) == pytest.approx(0.5)
    assert roofline_s((), 1e9, chip) == pytest.approx(2.0)
    assert transfer_s(gathered(), chip) == pytest.approx(4 * transfer_s(gathered(), CHIP))


def gathered(**fields):
    """A gather of 800 MB over eight devices: 7 s of `CHIP`'s links."""
    one = Collective(
        kind="all-gather", op_name="", nbytes=8 * 10**8, group=8, times=1, is_hidden=False
    )
    return attrs.evolve(one, **fields)


HOSTS = attrs.evolve(CHIP, chips=32, chips_per_host=8, network_bandwidth=1e7)


def test_a_ring_leaves_a_host_once_over_the_networks_of_all_its_members_there():
    assert transfer_s(gathered(), HOSTS) == pytest.approx(7.0)
    over_all = gathered(group=32, islands=4)
    assert transfer_s(over_all, HOSTS) == pytest.approx(8e8 * 31 / 32 / (8 * 1e7))
    one_on_each = gathered(group=4, islands=4)
    assert transfer_s(one_on_each, HOSTS) == pytest.approx(8e8 * 3 / 4 / 1e7)


def test_what_all_send_to_all_leaves_a_host_but_for_its_share():
    swapped = gathered(kind="all-to-all", group=32, islands=4)
    assert transfer_s(swapped, HOSTS) == pytest.approx(8e8 * 24 / 32 / 1e7)
    passed_on = gathered(kind="collective-permute", group=32, islands=2)
    assert transfer_s(passed_on, HOSTS) == pytest.approx(8e8 / 1e7)


def test_unknown_figures_give_no_time():
    cpu = Hardware.parse("cpu-8")
    assert roofline_s((), 1.0, cpu) is None
    assert transfer_s(gathered(), cpu) is None
    program = parse_program(CYCLES)
    assert waiting_s(program, (gathered(),), (), (), cpu) is None
    assert waiting_s(program, (gathered(),), (), (), Hardware.parse("cpu-1")) == (0.0,)


KERNEL = """\
HloModule step, is_scheduled=true

ENTRY %main (p: bf16[1024]) -> bf16[1024] {
  %p = bf16[1024]{0} parameter(0)
  %mine = bf16[1024]{0} custom-call(%p), custom_call_target="acme"
  ROOT %sum = bf16[1024]{0} all-reduce(%mine), channel_id=1, replica_groups={}
}
"""


def test_kernels_and_collectives_are_no_part_of_compute():
    program = parse_program(KERNEL)
    kernels = tuple(custom_kernels(program, ()))
    seconds = {one.name: one.seconds for one in costs(program, CHIP, kernels)}
    assert seconds == {"p": 0.0, "mine": 0.0, "sum": 0.0}
    assert kernel_s(kernels[0], CHIP) == pytest.approx(2 * 2048 / 1e9)


def test_a_step_faster_than_its_chips_is_no_prediction_where_loops_are_not_counted():
    assert has_unknown_loops(14.7, 1)
    assert not has_unknown_loops(0.94, 1)
    assert not has_unknown_loops(1.2, 0)  # over the peak of full-precision products
    assert not has_unknown_loops(None, 1)


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
