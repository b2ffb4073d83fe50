"""Flash attention of our own on TPU: interpreted against the reference, and compiled."""

from functools import partial

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_tpu.kernels.attention.api import (
    tpu_flash_attention,
    tpu_flash_attention_backward,
    unsupported_reason,
)
from axl_tpu.kernels.attention.block_sizes import (
    BACKWARD_BLOCK_SIZES,
    BLOCK_SIZES,
    BackwardBlockSizes,
    ForwardBlockSizes,
)
from pallas_races import CAREFUL, check_no_race_was_printed

from axcore.ops import AttentionSpec, Call, KernelPolicy, choose
from axcore.ops.attention.kernels import attention_reference
from axcore.ops.attention.op import ATTENTION_OP, attention_custom_vjp
from axcore.ops.contract import relative_error
from axcore.plugins import Hardware
from axcore.testing import AttentionTestCase, CompileSuite, KernelSuite, attention_case
from axcore.testing.contracts import attention_backward_case

KEYS = ("attention/tpu_flash_attention", "attention_backward/tpu_flash_attention")
IN_TWO = BackwardBlockSizes(256, 128, 128, 256, at_once=0)
AT_ONCE = BackwardBlockSizes(128, 128, 128, 256, at_once=1)

INTERPRET = jax.default_backend() != "tpu"


def attention(inputs, spec, *, block_sizes=AT_ONCE, interpret=INTERPRET):
    """Both halves, in blocks so small that the samples have several."""

    def forward(inputs, spec):
        with BLOCK_SIZES.forced(ForwardBlockSizes(128, 256)):
            return tpu_flash_attention(inputs, spec, interpret=interpret)

    def backward(inputs, spec, **rows):
        with BACKWARD_BLOCK_SIZES.forced(block_sizes):
            return tpu_flash_attention_backward(inputs, spec, interpret=interpret, **rows)

    return attention_custom_vjp(inputs, spec, forward=forward, backward=backward)


class Interpreted(KernelSuite):
    plugin = "axl-tpu"
    keys = KEYS[:1]
    dtypes = ("float32",)
    samples: tuple[AttentionTestCase, ...] = ()

    def function(self, kernel):
        return attention

    def extra_cases(self, kernel):
        return tuple(attention_case(sample) for sample in self.samples)


def several_blocks(name, **fields):
    return AttentionTestCase(name=name, **{"batch": 1, "queries": 200, "keys": 330, **fields})


CAUSAL = {"right": 0, "query_offset": 130}
DOCUMENTS = several_blocks("documents", batch=4, parts=("segments",), spec=CAUSAL)
EVERYTHING = several_blocks(
    "everything_but_bias",
    batch=2,
    width=24,
    value_width=40,
    parts=("segments", "ranges", "sinks", "offset", "dropout"),
    spec={"left": 150, "right": 2, "soft_cap": 3.0, "dropout_rate": 0.2, "query_offset": 4},
)


@pytest.mark.slow
class TestKernels(Interpreted):
    samples = (DOCUMENTS,)
    case_names = ("documents",)


@pytest.mark.slow
class TestKernelsOnTheOpsCases(Interpreted):
    dtypes = ("float32", "bfloat16")
    case_names = (
        "one_query",
        "more_queries",
        "one_key_head",
        "width_80",
        "value_width",
        "window",
        "lonely_segments",
        "ranges",
        "sinks",
        "offset",
        "dropout",
        "plain_lse",
    )


@pytest.mark.slow
class TestKernelsInSeveralBlocks(Interpreted):
    samples = (
        several_blocks("narrow_window", spec={"left": 3, "right": 0, "query_offset": 100}),
        several_blocks("soft_cap_in_blocks", spec={**CAUSAL, "soft_cap": 2.0}),
        several_blocks("in_front_of_all_keys", spec={"right": 0, "query_offset": -150}),
        several_blocks("lonely_documents", parts=("lonely_segments",), spec={"right": 90}),
    )
    case_names = tuple(sample.name for sample in samples)


def gradients(run, inputs, spec):
    """The output, the finite log-sum-exps, and gradients of their weighted sum by all floats."""
    floats = {
        name: x
        for name, x in inputs._asdict().items()
        if x is not None and jnp.issubdtype(x.dtype, jnp.floating)
    }

    def loss(floats):
        o, lse = run(inputs._replace(**floats), spec)
        lse = jnp.where(jnp.isfinite(lse), lse, 0.0)
        weighted = (
            x * jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape) for x in (o, lse)
        )
        return sum(map(jnp.sum, weighted)), (o, lse)

    found, outputs = jax.jit(jax.grad(loss, has_aux=True))(floats)
    return {"o": outputs[0], "lse": outputs[1], **found}


@pytest.mark.parametrize(
    "block_sizes",
    [
        pytest.param(AT_ONCE, id="at_once"),
        pytest.param(IN_TWO, id="in_two", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_both_ways_backward_equal_the_reference_with_everything(block_sizes):
    inputs, spec = EVERYTHING.make()
    got = gradients(partial(attention, block_sizes=block_sizes), inputs, spec)
    wanted = gradients(attention_reference, inputs, spec)
    assert max(relative_error(got[name], wanted[name]) for name in wanted) < 1e-5


def two_documents(size=128):
    """A row of two documents of a block each, with no mask between them but their ids."""
    inputs, spec = AttentionTestCase(
        name="two", batch=1, queries=2 * size, keys=2 * size, heads=2, key_heads=1
    ).make()
    ids = jnp.repeat(jnp.asarray([[7, -3]], jnp.int32), size, axis=1)
    return inputs._replace(q_segments_BT=ids, k_segments_BS=ids), spec


@pytest.mark.slow
def test_blocks_of_other_documents_are_not_read():
    inputs, spec = two_documents()
    poisoned = inputs._replace(
        k_BSKH=inputs.k_BSKH.at[:, 128:].set(jnp.nan), v_BSKV=inputs.v_BSKV.at[:, 128:].set(jnp.nan)
    )
    with BLOCK_SIZES.forced(ForwardBlockSizes(128, 128)):
        clean, _ = tpu_flash_attention(inputs, spec, interpret=True)
        other, _ = tpu_flash_attention(poisoned, spec, interpret=True)
    np.testing.assert_array_equal(other[:, :128], clean[:, :128])
    assert np.isnan(other[:, 128:]).all()


@pytest.mark.slow
def test_steps_do_not_race_and_read_nothing_out_of_bounds(capsys):
    inputs, spec = two_documents()
    got = gradients(partial(attention, interpret=CAREFUL), inputs, spec)
    wanted = gradients(attention_reference, inputs, spec)
    assert max(relative_error(got[name], wanted[name]) for name in wanted) < 1e-5
    check_no_race_was_printed(capsys)


# -- Which calls it takes ------------------------------------------------------------------------


def call(sample=DOCUMENTS, dtype="bfloat16") -> Call:
    return attention_case(sample).abstract_call(dtype)


def sized(tokens, *, width=128, **choices) -> Call:
    shapes = {name: (2, tokens, heads, width) for name, heads in (("q", 8), ("k", 2), ("v", 2))}
    return Call(
        op="attention",
        shapes=tuple(shapes.items()),
        dtypes=tuple((name, "bfloat16") for name in shapes),
        features=(*attrs.asdict(AttentionSpec(scale=1.0, **choices)).items(), ("lse", False)),
    )


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (call(dtype="float16"), "takes bfloat16 and float32, not float16"),
        (call(AttentionTestCase(name="bias", parts=("bias",))), "takes no bias"),
        (sized(0), "takes no empty array, not q (2, 0, 8, 128)"),
        (sized(512, width=12), "takes widths of q that are multiples of 8 up to 256, not"),
        (sized(512, width=264), "not 264"),
        (sized(2**20, right=0), "up to 131072 pairs of blocks of 1024 in a row, not 526848"),
        (sized(2**24, left=5, right=0), "takes up to 8388608 queries or keys"),
    ],
)
def test_call_that_it_cannot_serve_is_refused_with_the_reason(refused, reason):
    assert reason in unsupported_reason(refused)


@pytest.mark.parametrize(
    ("target", "tokens", "at_once"),
    [("v5p-8", 4096, 1), ("v5p-8", 32768, 0), ("v6e-8", 32768, 1), ("v4-8", 4096, 0)],
)
def test_gradients_are_summed_at_once_where_the_sums_fit(target, tokens, at_once):
    hardware = Hardware.parse(f"tpu-{target}")
    assert BACKWARD_BLOCK_SIZES.entry(sized(tokens), hardware).block_sizes.at_once == at_once


@pytest.mark.parametrize("target", ["tpu-v4-8", "tpu-v5e-8", "tpu-v5p-8", "tpu-v6e-8", "tpu-7x-8"])
@pytest.mark.parametrize("part", ["ranges", "segments"])
def test_both_passes_are_ours_before_a_librarys_where_the_fastest_is_asked_for(target, part):
    policy = KernelPolicy(hardware=Hardware.parse(target), kernel_choice="fastest")
    wanted = call(AttentionTestCase(name=part, queries=256, keys=256, parts=(part,)))
    for one in (wanted, attrs.evolve(wanted, op=ATTENTION_OP.backward)):
        assert choose(one, policy).kernel.name == "tpu_flash_attention"


@pytest.mark.parametrize(
    ("target", "choices", "size"),
    [("v6e-8", {"right": 0}, 1024), ("v6e-8", {"left": 600, "right": 0}, 512), ("v5p-8", {}, 512)],
)
def test_blocks_are_larger_where_nothing_hides_parts_of_them(target, choices, size):
    block_sizes = BLOCK_SIZES.entry(
        sized(4096, **choices), Hardware.parse(f"tpu-{target}")
    ).block_sizes
    assert block_sizes == ForwardBlockSizes(size, size)


# -- Compiled ------------------------------------------------------------------------------------


def long(name, **fields):
    sizes = {"batch": 8, "queries": 4096, "keys": 4096, "heads": 4, "key_heads": 2}
    widths = {"width": 128, "value_width": 128}
    return AttentionTestCase(name=name, **{**sizes, **widths, "spec": {"right": 0}, **fields})


class TestCompile(CompileSuite):
    plugin = "axl-tpu"
    keys = KEYS
    targets = ("tpu-v5e-8", "tpu-v5p-8", "tpu-v6e-8")
    calls = {"tpu_flash_attention": ('custom_call_target="tpu_custom_call"', 1)}

    def cases(self, kernel):
        samples = (
            long("documents", parts=("segments",)),
            long("everything", parts=EVERYTHING.parts, spec=EVERYTHING.spec),
            long("width_64", width=64, value_width=64),
            long("width_256", width=256, value_width=256),
            long("odd", queries=1000, keys=1333, width=80, value_width=40),
        )
        if kernel.op == "attention_backward":
            return tuple(attention_backward_case(sample) for sample in samples)
        row = long("long", queries=65536, keys=65536, heads=2, key_heads=1, parts=("segments",))
        return tuple(attention_case(sample) for sample in (*samples, row))
