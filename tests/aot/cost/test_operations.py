"""Bytes that fusions move, of arrays of which they touch a slice."""

import re

import jax
import pytest

from axcore.aot.cost.operations import bytes_moved, custom_kernels
from axcore.aot.hlo.program import parse_program
from axcore.ops import Call, KernelPolicy, choose, moved_bytes_scope
from axcore.plugins import Hardware

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


ROWS, HEADS, TOKENS, WIDTH = 2, 4, 64, 16
SHAPE = f"bf16[{ROWS},{HEADS},{TOKENS},{WIDTH}]"
LSE = f"f32[{ROWS},{HEADS},1,{TOKENS}]"
PRODUCT = 2.0 * ROWS * HEADS * TOKENS * TOKENS * WIDTH

PROGRAM = """\
HloModule step, is_scheduled=true

ENTRY %main (q: SHAPE) -> SHAPE {
  %q = SHAPE parameter(0)
  %k = SHAPE parameter(1)
  %v = SHAPE parameter(2)
  %mask = s8[1,8,8] constant({...})
  %empty = SHAPE custom-call(), custom_call_target="AllocateBuffer"
  %forward = (SHAPE, LSE) custom-call(%mask, %q, %k, %v), custom_call_target="acme", FORWARD
  %dq = (SHAPE, f32[2,8,16]) custom-call(%mask, %q, %k, %v), custom_call_target="acme", BACKWARD
  %dkv = (SHAPE, SHAPE) custom-call(%mask, %q, %k, %v), custom_call_target="acme", BACKWARD
  ROOT %all = (SHAPE, SHAPE, SHAPE) custom-call(%mask, %q, %k, %v), custom_call_target="acme", ALL
}
"""
FORWARD = 'metadata={op_name="jit(f)/jvp(model)/attention/core/flash"}'
BACKWARD = 'metadata={op_name="jit(f)/transpose(jvp(model))/attention/core/flash"}'


def attention_choice(*, right=None, left=None, tokens=TOKENS):
    call = Call(
        op="attention",
        shapes=tuple((name, (ROWS, tokens, HEADS, WIDTH)) for name in ("q", "k", "v")),
        dtypes=tuple((name, "bfloat16") for name in ("q", "k", "v")),
        features=(("left", left), ("right", right), ("query_offset", 0)),
    )
    return choose(call, KernelPolicy(hardware=Hardware.parse("cpu-1")))


def kernels(program=PROGRAM, *, right, left=None, backward=BACKWARD):
    text = program.replace("SHAPE", SHAPE).replace("LSE", LSE).replace("ALL", backward)
    text = text.replace("FORWARD", FORWARD).replace("BACKWARD", BACKWARD)
    choice = attention_choice(right=right, left=left)
    found = custom_kernels(parse_program(text), (choice,))
    return {kernel.name: kernel for kernel in found}


def test_a_backward_kernel_makes_two_products_and_one_for_each_gradient_that_it_returns():
    found = kernels(right=None)
    assert found["forward"].flops == 2 * PRODUCT
    assert found["dq"].flops == 3 * PRODUCT
    assert found["dkv"].flops == 4 * PRODUCT
    assert found["all"].flops == 5 * PRODUCT


def test_heads_side_by_side_count_as_heads_of_their_own():
    flat = f"bf16[{ROWS},{TOKENS},{HEADS * WIDTH}]"
    found, side_by_side = kernels(right=None), kernels(PROGRAM.replace("SHAPE", flat), right=None)
    for name, kernel in found.items():
        assert side_by_side[name].flops == kernel.flops


def test_a_kernel_of_another_op_is_no_attention_whatever_it_is_given():
    rope = f"""
HloModule step, is_scheduled=true

ENTRY %main (x: {SHAPE}) -> {SHAPE} {{
  %x = {SHAPE} parameter(0)
  %cos = f32[{ROWS},{TOKENS},{WIDTH}] parameter(1)
  ROOT %reference.1 = {SHAPE} custom-call(%x, %cos, %cos), custom_call_target="acme", {FORWARD}
}}
"""
    shape = ("x", (ROWS, TOKENS, HEADS, WIDTH))
    call = Call(op="rope", shapes=(shape,), dtypes=(("x", "bfloat16"),))
    policy = KernelPolicy(hardware=Hardware.parse("cpu-1"), pins={"rope": "reference"})
    (kernel,) = custom_kernels(parse_program(rope), (attention_choice(), choose(call, policy)))
    assert (kernel.flops, kernel.role) == (0.0, "")


def test_products_have_the_dtype_of_the_queries_whatever_the_first_operand_is():
    found = kernels(right=None)
    assert {kernel.dtype for kernel in found.values()} == {"bf16"}
    assert {kernel.dtype for kernel in custom_kernels(parse_program(GROUPED), ())} == {"bf16"}


def test_a_kernel_is_named_with_the_op_that_it_serves():
    found = kernels(right=None)
    assert found["forward"].role == "attention/portable"
    assert found["dq"].role == "attention_backward/portable"


def test_causal_attention_is_half_of_all_pairs_and_a_window_what_it_shows():
    assert kernels(right=0)["forward"].flops == PRODUCT
    assert kernels(right=0, left=7)["forward"].flops == pytest.approx(2 * PRODUCT * 8 / TOKENS)


def test_a_kernel_serves_the_calls_of_as_many_queries_as_it_takes():
    """A causal ring has a causal call of all tokens of a device, and calls of full halves."""
    half = SHAPE.replace(f",{TOKENS},", f",{TOKENS // 2},")
    choices = (attention_choice(right=0), attention_choice(tokens=TOKENS // 2))
    for shape, flops in ((SHAPE, PRODUCT), (half, PRODUCT / 2)):
        text = PROGRAM.replace("SHAPE", shape).replace("LSE", LSE).replace("FORWARD", FORWARD)
        found = {one.name: one.flops for one in custom_kernels(parse_program(text), choices)}
        assert found["forward"] == flops


def test_a_kernel_that_states_its_flops_is_believed():
    stated = BACKWARD + ', backend_config={"cost_estimate":{"flops":"123456"}}'
    assert kernels(right=0, backward=stated)["all"].flops == 123456.0


def test_buffers_that_are_only_allocated_are_no_kernels():
    assert set(kernels(right=0)) == {"forward", "dq", "dkv", "all"}
    moved = 8 * 8 + 4 * ROWS * HEADS * TOKENS * WIDTH * 2 + ROWS * HEADS * TOKENS * 4
    assert kernels(right=0)["forward"].nbytes == moved


GROUPED = """\
HloModule step, is_scheduled=true

ENTRY %main (x: bf16[256,32]) -> bf16[256,64] {
  %x = bf16[256,32] parameter(0)
  %w = bf16[8,32,64] parameter(1)
  %sizes = s32[8] parameter(2)
  %dy = bf16[256,64] parameter(3)
  %y = bf16[256,64] custom-call(%sizes, %x, %w), custom_call_target="acme"
  ROOT %dw = bf16[8,32,64] custom-call(%sizes, %x, %dy), custom_call_target="acme"
}
"""


def grouped_choice():
    call = Call(
        op="grouped_matmul",
        shapes=(("lhs", (256, 32)), ("rhs", (8, 32, 64)), ("group_sizes", (8,))),
        dtypes=(("lhs", "bfloat16"), ("rhs", "bfloat16"), ("group_sizes", "int32")),
    )
    return choose(call, KernelPolicy(hardware=Hardware.parse("cpu-1")))


def test_products_by_group_take_every_row_once():
    choice = grouped_choice()
    found = {one.name: one.flops for one in custom_kernels(parse_program(GROUPED), (choice,))}
    assert found == {"y": 2.0 * 256 * 32 * 64, "dw": 2.0 * 256 * 32 * 64}
    assert {one.flops for one in custom_kernels(parse_program(GROUPED), ())} == {0.0}
    assert {one.role for one in custom_kernels(parse_program(GROUPED), (choice,))} == {
        "grouped_matmul/portable"
    }


def test_rows_that_are_not_expected_to_come_cost_no_product():
    """Where a step has room for more rows than an even load sends, those of no group are free."""
    scopes = 'metadata={op_name="jit(f)/jvp(model)/experts/occupied_0.2500/expert/gate"}'
    text = GROUPED.replace(
        'call(%sizes, %x, %w), custom_call_target="acme"',
        f'call(%sizes, %x, %w), custom_call_target="acme", {scopes}',
    )
    found = {
        one.name: one.flops for one in custom_kernels(parse_program(text), (grouped_choice(),))
    }
    assert found == {"y": 2.0 * 64 * 32 * 64, "dw": 2.0 * 256 * 32 * 64}


QUANTIZED = """\
HloModule step, is_scheduled=true

ENTRY %main (x: f8e4m3fn[256,32]) -> bf16[256,64] {
  %x = f8e4m3fn[256,32] parameter(0)
  %w = f8e4m3fn[64,32] parameter(1)
  %scale = f32[1,1] parameter(2)
  %wide = bf16[256,32] parameter(3)
  %other = bf16[256,64] custom-call(%wide, %wide, %scale), custom_call_target="acme"
  ROOT %y = bf16[256,64] custom-call(%scale, %x, %w), custom_call_target="acme"
}
"""


def test_a_product_of_narrow_matrices_counts_in_their_own_dtype_however_they_are_turned():
    call = Call(
        op="quantized_dot",
        shapes=(("lhs", (256, 32)), ("rhs", (32, 64))),
        dtypes=(("lhs", "float8_e4m3fn"), ("rhs", "float8_e4m3fn")),
    )
    policy = KernelPolicy(hardware=Hardware.parse("cpu-1"), pins={"quantized_dot": "emulated"})
    choice = choose(call, policy)
    found = {one.name: one for one in custom_kernels(parse_program(QUANTIZED), (choice,))}
    assert found["y"].flops == 2.0 * 256 * 32 * 64
    assert (found["y"].dtype, found["y"].role) == ("f8e4m3fn", "quantized_dot/emulated")
    assert found["other"].flops == 0.0
    assert {one.flops for one in custom_kernels(parse_program(QUANTIZED), ())} == {0.0}


LAYER = """\
  %forwardN = (SHAPE, LSE) custom-call(%mask, %q, %k, %v), custom_call_target="acme", FORWARD
  %dqN = SHAPE custom-call(%mask, %q, %k, %v), custom_call_target="acme", BACKWARD
  %dkvN = (SHAPE, SHAPE) custom-call(%mask, %q, %k, %v), custom_call_target="acme", BACKWARD
"""
GIVEN = """\
  %q = SHAPE constant({...})
  %k = SHAPE constant({...})
  %v = SHAPE constant({...})
  %mask = s8[1,8,8] constant({...})
"""
UNROLLED = f"""\
HloModule step, is_scheduled=true

ENTRY %main () -> s32[] {{
{GIVEN}{"".join(LAYER.replace("N =", f"{at} =") for at in range(3))}\
  ROOT %done = s32[] constant(3)
}}
"""
SCANNED = f"""\
HloModule step, is_scheduled=true

%body (i: s32[]) -> s32[] {{
  %i = s32[] parameter(0)
{GIVEN}{LAYER}\
  ROOT %next = s32[] negate(%i)
}}

ENTRY %main () -> s32[] {{
  %zero = s32[] constant(0)
  ROOT %loop = s32[] while(%zero), condition=%body, body=%body, TIMES
}}
""".replace("TIMES", 'backend_config={"known_trip_count":{"n":"3"}}')


def test_an_unrolled_stack_counts_as_a_scanned_one():
    scanned = sum(kernel.flops for kernel in kernels(SCANNED, right=None).values())
    unrolled = sum(kernel.flops for kernel in kernels(UNROLLED, right=None).values())
    assert scanned == unrolled == 3 * (2 + 3 + 4) * PRODUCT
