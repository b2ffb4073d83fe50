"""Kernels that the compiler did not write: their FLOPs, from what they are called with."""

import pytest

from axcore.aot.cost.custom_kernels import custom_kernels
from axcore.aot.hlo.program import parse_program
from axcore.ops import Call, KernelPolicy, choose
from axcore.plugins import Hardware

ROWS, HEADS, TOKENS, WIDTH = 2, 4, 64, 16
SHAPE = f"bf16[{ROWS},{HEADS},{TOKENS},{WIDTH}]"
PRODUCT = 2.0 * ROWS * HEADS * TOKENS * TOKENS * WIDTH

PROGRAM = """\
HloModule step, is_scheduled=true

ENTRY %main (q: SHAPE) -> SHAPE {
  %q = SHAPE parameter(0)
  %k = SHAPE parameter(1)
  %v = SHAPE parameter(2)
  %mask = s8[1,8,8] constant({...})
  %empty = SHAPE custom-call(), custom_call_target="AllocateBuffer"
  %forward = SHAPE custom-call(%mask, %q, %k, %v), custom_call_target="acme", FIRST
  %first = SHAPE custom-call(%mask, %q, %k, %v), custom_call_target="acme", SECOND
  ROOT %second = SHAPE custom-call(%mask, %q, %k, %v), custom_call_target="acme", THIRD
}
""".replace("SHAPE", SHAPE)
FORWARD = 'metadata={op_name="jit(f)/jvp(model)/attention/core/flash"}'
BACKWARD = 'metadata={op_name="jit(f)/transpose(jvp(model))/attention/core/flash"}'


def kernels(*, right, left=None, **parts):
    call = Call(
        op="attention",
        shapes=tuple((name, (ROWS, TOKENS, HEADS, WIDTH)) for name in ("q", "k", "v")),
        dtypes=tuple((name, "bfloat16") for name in ("q", "k", "v")),
        features=(("left", left), ("right", right), ("query_offset", 0)),
    )
    choice = choose(call, KernelPolicy(hardware=Hardware.parse("cpu-1")))
    text = PROGRAM.replace("FIRST", FORWARD)
    text = text.replace("SECOND", parts.get("backward", BACKWARD))
    text = text.replace("THIRD", parts.get("second", BACKWARD))
    found = custom_kernels(parse_program(text), (choice,))
    return {kernel.name: kernel for kernel in found}


def test_a_backward_pass_in_two_kernels_makes_seven_products():
    found = kernels(right=None)
    assert found["forward"].flops == 2 * PRODUCT
    assert found["first"].flops + found["second"].flops == 7 * PRODUCT


def test_a_backward_pass_in_one_kernel_makes_five_products():
    assert kernels(right=None, second=FORWARD)["first"].flops == 5 * PRODUCT


def test_causal_attention_is_half_of_all_pairs_and_a_window_what_it_shows():
    assert kernels(right=0)["forward"].flops == PRODUCT
    assert kernels(right=0, left=7)["forward"].flops == pytest.approx(2 * PRODUCT * 8 / TOKENS)


def test_a_kernel_that_states_its_flops_is_believed():
    stated = BACKWARD + ', backend_config={"cost_estimate":{"flops":"123456"}}'
    assert kernels(right=0, backward=stated)["first"].flops == 123456.0


def test_buffers_that_are_only_allocated_are_no_kernels():
    assert set(kernels(right=0)) == {"forward", "first", "second"}
    operands = 8 * 8 + 3 * ROWS * HEADS * TOKENS * WIDTH * 2
    assert kernels(right=0)["forward"].nbytes == operands + ROWS * HEADS * TOKENS * WIDTH * 2


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


def test_products_by_group_take_every_row_once():
    call = Call(
        op="grouped_matmul",
        shapes=(("lhs", (256, 32)), ("rhs", (8, 32, 64)), ("group_sizes", (8,))),
        dtypes=(("lhs", "bfloat16"), ("rhs", "bfloat16"), ("group_sizes", "int32")),
    )
    choice = choose(call, KernelPolicy(hardware=Hardware.parse("cpu-1")))
    found = {one.name: one.flops for one in custom_kernels(parse_program(GROUPED), (choice,))}
    assert found == {"y": 2.0 * 256 * 32 * 64, "dw": 2.0 * 256 * 32 * 64}
    assert {one.flops for one in custom_kernels(parse_program(GROUPED), ())} == {0.0}
