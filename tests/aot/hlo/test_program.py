"""Programs as XLA prints them: shapes, calls, loops, products."""

import jax
import jax.numpy as jnp
import pytest

from axcore.aot.cost.operations import products
from axcore.aot.hlo.loops import executions, trip_count, unknown_loops
from axcore.aot.hlo.program import (
    OUTSIDE_MODULES,
    ModuleNames,
    is_backward,
    module_paths,
    parse_program,
    parse_shape,
)
from axcore.config import update_config
from axcore.layers import Stack, TransformerLayer
from axcore.models import transformer

LOOP = """\
HloModule step, is_scheduled=true

%body (arg: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %arg = (s32[]{:T(128)}, f32[4,8]{1,0:T(8,128)}) parameter(0)
  %i = s32[] get-tuple-element(%arg), index=0
  %x = f32[4,8]{1,0:T(8,128)} get-tuple-element(%arg), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %kernel = f32[4,8]{1,0} custom-call(%x), custom_call_target="acme", metadata={
"notes":"{over several lines}"
}, metadata={op_name="jit(f)/model/layer/kernel"}
  ROOT %out = (s32[], f32[4,8]) tuple(%next, %kernel)
}

%condition (arg.1: (s32[], f32[4,8])) -> pred[] {
  %arg.1 = (s32[], f32[4,8]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%arg.1), index=0
  %limit = s32[] constant(32)
  ROOT %less = pred[] compare(%i.1, %limit), direction=LT
}

ENTRY %main (p: f32[4,8]) -> f32[4,8] {
  %p = f32[4,8]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[4,8]{1,0}) tuple(%zero, %p)
  %loop = (s32[], /*index=1*/f32[4,8]{1,0}) while(%start), condition=%condition, body=%body
  ROOT %result = f32[4,8]{1,0} get-tuple-element(%loop), index=1
}
"""


def compiled(fn, *arguments):
    return parse_program(jax.jit(fn).lower(*arguments).compile().as_text())


def flops_of(program):
    return sum(
        product.flops * one.times
        for one in executions(program)
        for product in products(program, one.instruction, one.computation)
    )


def test_shapes_are_read_with_layouts_tiles_and_memory_spaces():
    shape, rest = parse_shape("(bf16[3,130]{1,0:T(8,128)(2,1)S(1)}, (f32[], s8[7]{0})) fusion(%a)")
    assert rest == " fusion(%a)"
    first, scalar, small = shape.arrays
    assert (first.dtype, first.dims, first.space) == ("bf16", (3, 130), 1)
    assert first.nbytes == 3 * 130 * 2
    assert first.stored_bytes == 8 * 256 * 2
    assert (scalar.dims, scalar.nbytes, small.nbytes) == ((), 4, 7)
    assert shape.device_bytes == 4 + 7


@pytest.mark.parametrize(
    ("dtype", "nbytes"), [("f8e4m3fn", 8), ("s4", 4), ("pred", 8), ("c64", 64), ("u16", 16)]
)
def test_sizes_of_elements_are_in_the_dtypes_names(dtype, nbytes):
    assert parse_shape(f"{dtype}[8]{{0}} ")[0].nbytes == nbytes


def test_instructions_keep_what_stands_on_further_lines():
    program = parse_program(LOOP)
    kernel = program.computations["body"].by_name["kernel"]
    assert kernel.op_name == "jit(f)/model/layer/kernel"
    assert kernel.operands == ("x",)
    assert program.entry.root.attribute("index") == "1"


def test_bodies_of_loops_run_as_often_as_their_counter_says():
    program = parse_program(LOOP)
    times = {one.instruction.name: one.times for one in executions(program)}
    assert times["kernel"] == times["less"] == 32
    assert times["loop"] == times["result"] == 1
    assert unknown_loops(program) == 0


def test_a_loop_without_a_constant_limit_counts_once_and_is_told_of():
    program = parse_program(LOOP.replace("constant(32)", "parameter(1)"))
    assert trip_count(program, program.entry.by_name["loop"], program.entry) is None
    assert unknown_loops(program) == 1


def test_flops_of_a_program_of_one_product_are_those_that_xla_counts():
    a, b = jnp.ones((24, 40)), jnp.ones((40, 56))
    program = compiled(lambda a, b: jnp.tanh(a @ b), a, b)
    assert flops_of(program) == 2 * 24 * 40 * 56


def test_products_within_nested_loops_count_every_round():
    w = jnp.ones((6, 16, 16))

    def step(x, one):
        return jax.lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x @ one), x), None

    program = compiled(lambda x: jax.lax.scan(step, x, w)[0], jnp.ones((8, 16)))
    assert flops_of(program) == 6 * 3 * 2 * 8 * 16 * 16


WITHOUT_SCOPES = """\
HloModule step, is_scheduled=true

ENTRY %main (a: f32[8,4]) -> f32[8,4] {
  %a = f32[8,4] parameter(0)
  %product = f32[8,4] multiply(%a, %a)
  %copied = f32[8,4] copy(%product)
  ROOT %sum = f32[8,4] add(%product, %a), metadata={op_name="jit(f)/model/layer/add"}
}
"""


def test_what_a_compiler_left_without_scopes_belongs_to_who_takes_it():
    program = parse_program(WITHOUT_SCOPES)
    named = program.entry.by_name
    assert program.scopes_around(named["product"], program.entry) == "jit(f)/model/layer/add"
    assert program.scopes_around(named["sum"], program.entry) == "jit(f)/model/layer/add"
    assert program.scopes_around(named["copied"], program.entry) == ""


CONVOLUTION = """\
HloModule step, is_scheduled=true

ENTRY %main (a: bf16[{lhs}], b: bf16[{rhs}]) -> bf16[{out}] {{
  %a = bf16[{lhs}] parameter(0)
  %b = bf16[{rhs}] parameter(1)
  ROOT %c = bf16[{out}] convolution(%a, %b), window={{{window}}}, dim_labels={labels}
}}
"""


AS_ROWS = {  # [4 * 4096, 64] by [64, 11008], the rows in two dimensions
    "lhs": "4,4096,64",
    "rhs": "64,11008,1",
    "out": "4,4096,11008",
    "window": "size=1",
    "labels": "0bf_io0->0bf",
}
AS_HEADS = {  # [4 * 4096, 64] by [64, 32 * 128]; heads are taps, most fall outside of the input
    "lhs": "4,4096,64,1",
    "rhs": "32,128,64,1",
    "out": "4,4096,32,128",
    "window": "size=1x32 pad=0_0x31_31 rhs_reversal=0x1",
    "labels": "0bf1_1oi0->0b1f",
}


@pytest.mark.parametrize(("case", "columns"), [(AS_ROWS, 11008), (AS_HEADS, 32 * 128)])
def test_products_written_as_convolutions_count_what_falls_on_the_input(case, columns):
    program = parse_program(CONVOLUTION.format(**case))
    assert flops_of(program) == 2 * 4 * 4096 * 64 * columns


SIZES = {"vocab_size": 32, "dim": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 16}
BODY = "decoder/stack/while/body/closed_call"


@pytest.fixture(scope="module")
def names():
    return ModuleNames(module_paths(transformer(**SIZES).build()))


@pytest.mark.parametrize(
    ("op_name", "module"),
    [
        ("jit(step)/jvp(model)/decoder/embedding/jit(_take)/gather", "decoder.embedding"),
        (
            f"jit(step)/jvp(model)/{BODY}/layer/attention_residual/attention/q/dot/dot_general",
            "decoder.stack.layer.attention.q.dot",
        ),
        (
            f"jit(step)/transpose(jvp(model))/{BODY}/checkpoint/rematted_computation/layer/"
            "feed_forward_residual/feed_forward/gate/dot/dot_general",
            "decoder.stack.layer.feed_forward.gate.dot",
        ),
        (
            f"jit(step)/jvp(model)/{BODY}/layer/attention_residual/norm/mul",
            "decoder.stack.layer.attention_residual.norm",
        ),
        ("jit(step)/jvp(model)/(decoder/norm/mul:head/dot)", "decoder.norm"),
        ("jit(step)/learner/mul", "learner"),
        ("jit(step)/jvp(model)/add", "model"),
        ("jit(step)/add", OUTSIDE_MODULES),
        ("", OUTSIDE_MODULES),
    ],
)
def test_scopes_lead_to_the_innermost_module(names, op_name, module):
    assert names(op_name) == module


def test_modules_of_an_unrolled_stack_have_their_numbers():
    layer = transformer(**SIZES).decoder.stack.layer
    stack = Stack.Config(num_layers=2, layer=layer)
    model = update_config(transformer(**SIZES), {"decoder.stack": stack}).build()
    assert isinstance(model.decoder.stack.layer[1], TransformerLayer)
    names = ModuleNames(module_paths(model))
    found = names("jit(step)/jvp(model)/decoder/stack/layer_1/feed_forward_residual/norm/mul")
    assert found == "decoder.stack.layer_1.feed_forward_residual.norm"


def test_recomputation_is_no_backward_pass():
    assert is_backward("jit(step)/transpose(jvp(model))/head/dot")
    assert not is_backward("jit(step)/transpose(jvp(model))/checkpoint/rematted_computation/dot")
    assert not is_backward("jit(step)/jvp(model)/head/dot")
