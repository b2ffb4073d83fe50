"""Bytes that fusions move, of arrays of which they touch a slice."""

import re

import jax

from axcore.aot.cost.bytes_moved import bytes_moved
from axcore.aot.hlo.program import parse_program
from axcore.ops import moved_bytes_scope

ADDED_INTO_A_STACK = """\
HloModule step, is_scheduled=true

%fused (stack: f32[8,64,32], value: f32[64,32], at: s32[]) -> f32[8,64,32] {
  %stack = f32[8,64,32]{2,1,0} parameter(0)
  %at = s32[] parameter(2)
  %zero = s32[] constant(0)
  %old = f32[1,64,32]{2,1,0} dynamic-slice(%stack, %at, %zero, %zero)
  %value = f32[64,32]{1,0} parameter(1)
  %row = f32[1,64,32]{2,1,0} bitcast(%value)
  %sum = f32[1,64,32]{2,1,0} add(%old, %row)
  ROOT %put = f32[8,64,32]{2,1,0} dynamic-update-slice(%stack, %sum, %at, %zero, %zero)
}

ENTRY %main (a: f32[8,64,32], b: f32[64,32], c: s32[]) -> f32[8,64,32] {
  %a = f32[8,64,32]{2,1,0} parameter(0)
  %b = f32[64,32]{1,0} parameter(1)
  %c = s32[] parameter(2)
  ROOT %out = f32[8,64,32]{2,1,0} fusion(%a, %b, %c), kind=kLoop, calls=%fused
}
"""
SLICE = 64 * 32 * 4
INDEX = 4


def moved(text):
    program = parse_program(text)
    return bytes_moved(program, program.entry.root, program.entry)


def test_adding_into_a_slice_in_place_reads_it_and_the_value_and_writes_it():
    assert moved(ADDED_INTO_A_STACK) == 3 * SLICE + INDEX


def test_an_array_that_is_also_read_whole_counts_whole():
    whole = ADDED_INTO_A_STACK.replace("bitcast(%value)", "slice(%stack), slice={[7:8], [0:64]}")
    assert moved(whole) == 8 * SLICE + SLICE + INDEX


FETCHED_AHEAD = """\
HloModule step, is_scheduled=true

ENTRY %main (a: s8[64,128]) -> s8[16,128] {
  %a = s8[64,128]{1,0} parameter(0)
  %copy = (s8[64,128]{1,0:S(1)}, s8[64,128]{1,0}, u32[]{:S(2)}) copy-start(%a)
  %slice = ((s8[64,128]{1,0}), s8[16,128]{1,0:S(1)}, s32[]{:S(2)}) slice-start(%a), slice={[0:16]}
  ROOT %there = s8[16,128]{1,0:S(1)} slice-done(%slice)
}
"""


def test_what_is_fetched_ahead_into_the_chip_is_read_once_from_memory():
    program = parse_program(FETCHED_AHEAD)
    read = {
        name: bytes_moved(program, program.entry.by_name[name], program.entry)
        for name in ("copy", "slice", "there")
    }
    assert read == {"copy": 64 * 128, "slice": 16 * 128, "there": 0}


SCATTERED = """\
HloModule step, is_scheduled=true

%replace (old: f32[], new: f32[]) -> f32[] {
  %old = f32[] parameter(0)
  ROOT %new = f32[] parameter(1)
}

%fused (pool: f32[512,16,32], at: s32[4,2], value: f32[4,32]) -> f32[512,16,32] {
  %pool = f32[512,16,32]{2,1,0} parameter(0)
  %at = s32[4,2]{1,0} parameter(1)
  %value = f32[4,32]{1,0} parameter(2)
  ROOT %put = f32[512,16,32]{2,1,0} scatter(%pool, %at, %value), update_window_dims={1}, \
inserted_window_dims={0,1}, scatter_dims_to_operand_dims={0,1}, index_vector_dim=1, \
to_apply=%replace
}

ENTRY %main (a: f32[512,16,32], b: s32[4,2], c: f32[4,32]) -> f32[512,16,32] {
  %a = f32[512,16,32]{2,1,0} parameter(0)
  %b = s32[4,2]{1,0} parameter(1)
  %c = f32[4,32]{1,0} parameter(2)
  ROOT %out = f32[512,16,32]{2,1,0} fusion(%a, %b, %c), kind=kCustom, calls=%fused
}
"""


def test_scattering_into_a_pool_in_place_moves_what_is_put_there():
    values, places = 4 * 32 * 4, 4 * 2 * 4
    assert moved(SCATTERED) == 2 * values + places


def test_scattering_into_an_array_that_is_made_there_writes_it_whole():
    made = SCATTERED.replace("scatter(%pool,", "scatter(%made,").replace(
        "  ROOT %put", "  %made = f32[512,16,32]{2,1,0} negate(%pool)\n  ROOT %put"
    )
    pool, values, places = 512 * 16 * 32 * 4, 4 * 32 * 4, 4 * 2 * 4
    assert moved(made) == 2 * pool + values + places


PAGES_OF_A_CACHE = """\
HloModule step, is_scheduled=true

ENTRY %main (q: f32[2,128], k: f32[64,16,128]) -> f32[2,128] {
  %q = f32[2,128]{1,0} parameter(0)
  %k = f32[64,16,128]{2,1,0} parameter(1)
  ROOT %o = f32[2,128]{1,0} custom-call(%q, %k), custom_call_target="acme", metadata={op_name="OP"}
}
"""


def test_a_kernel_that_is_given_more_than_it_reads_counts_what_it_says():
    text = PAGES_OF_A_CACHE
    everything = 2 * 2 * 128 * 4 + 64 * 16 * 128 * 4
    assert moved(text) == everything
    assert moved(text.replace("OP", scope_name(50_000))) == 50_000
    assert moved(text.replace("OP", scope_name(2 * everything))) == everything


def scope_name(nbytes):
    """Returns the name that an instruction has in the scope of a kernel that moves so much."""

    def scoped(x):
        with moved_bytes_scope(nbytes):
            return x + nbytes

    text = jax.jit(scoped).lower(1.0).compile().as_text()
    [name] = re.findall(r'op_name="([^"]*moves[^"]*)"', text)[:1]
    return name
