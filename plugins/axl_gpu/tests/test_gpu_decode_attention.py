"""Our decode attention for Hoppers: interpreted, around it with plain arithmetic, and compiled."""

from functools import partial

import attrs
import jax
import jax.numpy as jnp
import ptxas
import pytest
from axl_gpu.kernels.attention.api import SIMPLE, gpu_flash_attention
from axl_gpu.kernels.attention.arrays import ForwardBlockSizes
from axl_gpu.kernels.attention.block_sizes import FORWARD_BLOCK_SIZES
from axl_gpu.kernels.attention.matmuls import ARITHMETIC
from axl_gpu.kernels.decode.api import (
    BLOCK_SIZES,
    QUANTIZED_DTYPES,
    DecodeBlockSizes,
    gpu_decode_attention,
    unsupported_reason,
)
from axl_gpu.kernels.decode.kernel import KEYS, partial_sums
from mosaic_interpreter import INTERPRETER

from axcore.aot.cost.operations import bytes_moved
from axcore.aot.hlo.program import parse_program
from axcore.ops import Call, DecodeInputs, DecodeSpec
from axcore.ops.attention.blockwise import blockwise_forward
from axcore.ops.contract import relative_error
from axcore.ops.decode_attention.kernels import decode_attention_reference
from axcore.testing import CompileSuite, KernelSuite
from axcore.testing.contracts import DecodeTestCase, decode_case

KEY = ("decode_attention/gpu_decode_attention",)
INTERPRETED = partial(partial_sums, products=ARITHMETIC._replace(interpreter=INTERPRETER))


def sample(name, **fields):
    return DecodeTestCase(name=name, **{"width": 64, "value_width": 64, "capacity": 96, **fields})


EVERYTHING = sample(
    "everything",
    queries=3,
    lengths=(599, 17, 0),
    capacity=640,
    value_width=128,
    page_size=32,
    has_sinks=True,
    spec={"left": 300, "soft_cap": 3.0},
)

NARROW = (
    sample("int8_contiguous", capacity=72, lengths=(67, 5), narrow="int8"),
    sample("int8_small_pages", page_size=8, lengths=(90, 0), queries=3, narrow="int8"),
    sample("float8_pages", page_size=32, lengths=(67, 33), narrow="float8_e4m3fn"),
    attrs.evolve(EVERYTHING, name="int8_everything", narrow="int8"),
)


PROMPTS = (
    sample("prompt", queries=33, lengths=(90, 33), page_size=8, spec={"left": 30}),
    sample("int8_prompt", queries=40, lengths=(40, 67), narrow="int8", has_sinks=True),
)


def plain_sums(arrays, choices):
    """Plain JAX in the kernel's place: the same shares, each with the softmax of its keys."""
    batch = arrays.q_BKIH.shape[0]

    def by_row(pool):
        kept = jnp.take(pool, arrays.table_BP, axis=0, mode="clip")
        return kept.reshape(batch, -1, *pool.shape[2:]).astype(jnp.float32)

    k, v = by_row(arrays.k_MCKH), by_row(arrays.v_MCKV)
    key = jnp.arange(k.shape[1])[None]
    if arrays.is_narrow:
        scales = (arrays.key_scale_BKS, arrays.value_scale_BKS)
        k, v = (
            x * jnp.swapaxes(scale, 1, 2)[:, : key.size, :, None]
            for x, scale in zip((k, v), scales, strict=True)
        )
    v = jnp.where((key < arrays.lengths_B[:, None])[..., None, None], v, 0)
    logits = choices.scale * jnp.einsum("bkih,bskh->bkis", arrays.q_BKIH.astype(jnp.float32), k)
    if choices.soft_cap is not None:
        logits = choices.soft_cap * jnp.tanh(logits / choices.soft_cap)
    low, high = arrays.low_BI[..., None], arrays.high_BI[..., None]
    sees = (key[None] >= low) & (key[None] < high)
    first, end = arrays.blocks_B2[:, :1], arrays.blocks_B2[:, 1:]
    own = -(-(end - first) // choices.shares)
    share = jnp.where(own > 0, (key // KEYS - first) // jnp.maximum(own, 1), -1)
    is_own = share[:, None, :] == jnp.arange(choices.shares)[None, :, None]
    logits = jnp.where(sees[:, None, None] & is_own[:, None, :, None], logits[:, :, None], -jnp.inf)
    lse = jax.nn.logsumexp(logits, axis=-1)
    weights = jnp.exp(logits - jnp.where(jnp.isinf(lse), 0.0, lse)[..., None])
    o = jnp.einsum("bkzis,bskv->bkziv", weights, v)
    return o[:, :, :, : choices.out_rows], lse


@pytest.mark.quick_one_in(3)
class TestAround(KernelSuite):
    """What is around the kernel: shares, sinks, meshes and batches of calls."""

    plugin = "axl-gpu"
    keys = KEY
    dtypes = ("bfloat16",)
    case_names = ("wide", "paged_wide", "everything", *(one.name for one in (*NARROW, *PROMPTS)))

    def implementation(self, kernel):
        return partial(gpu_decode_attention, kernel=plain_sums, of_prompts=blockwise_forward)

    def extra_cases(self, kernel):
        return (
            decode_case(sample("wide")),
            decode_case(sample("paged_wide", page_size=8)),
            decode_case(EVERYTHING),
            *map(decode_case, (*NARROW, *PROMPTS)),
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        sample("contiguous", capacity=72, lengths=(67, 5)),
        sample("small_pages", page_size=8, lengths=(90, 0)),
        sample("large_pages", page_size=320, capacity=640, lengths=(599, 17)),
        EVERYTHING,
        *NARROW,
    ],
    ids=lambda one: one.name,
)
def test_the_kernel_interpreted_equals_the_reference(given):
    inputs, spec = given.make("bfloat16")
    with BLOCK_SIZES.forced(DecodeBlockSizes(blocks_per_processor=1, stages=2)):
        got = jax.jit(lambda inputs: gpu_decode_attention(inputs, spec, kernel=INTERPRETED))(inputs)
    wanted = decode_attention_reference(inputs, spec)
    assert relative_error(got.astype("float32"), wanted.astype("float32")) < 6e-3


@pytest.mark.slow
@pytest.mark.parametrize("given", PROMPTS, ids=lambda one: one.name)
def test_prompts_interpreted_equal_the_reference(given):
    inputs, spec = given.make("bfloat16")
    flash = partial(gpu_flash_attention, form=SIMPLE, products=INTERPRETED.keywords["products"])
    with FORWARD_BLOCK_SIZES.forced(ForwardBlockSizes(queries=64, keys=64)):
        got = gpu_decode_attention(inputs, spec, of_prompts=flash)
    wanted = decode_attention_reference(inputs, spec)
    assert relative_error(got.astype("float32"), wanted.astype("float32")) < 6e-3


def call_of(dtype="bfloat16", q=(2, 1, 8, 128), k=(2, 64, 2, 128), table=None, narrow=None):
    shapes = (("q", q), ("k", k), ("v", k), *((("page_table", table),) if table else ()))
    scales = (("key_scale", k[:3]),) if narrow else ()
    dtypes = (("q", dtype), ("k", narrow or dtype))
    return Call(op="decode_attention", shapes=(*shapes, *scales), dtypes=dtypes)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (call_of(dtype="float32"), "not float32"),
        (call_of(q=(0, 1, 8, 128)), "no empty array"),
        (call_of(k=(2, 64, 2, 80)), "multiples of 64 up to 256, not 80"),
        (call_of(k=(2, 56, 2, 128)), "a multiple of 8 keys from 64 up, not 56"),
        (call_of(k=(2, 1001, 2, 128)), "not 1001"),
        (call_of(narrow="float8_e5m2"), "int8 and float8_e4m3fn, not of float8_e5m2"),
        (call_of(k=(9, 48, 2, 128), table=(2, 4)), "multiples of 64 keys, not 48"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(call, reason):
    assert reason in unsupported_reason(call)


@pytest.mark.compile("gpu-h100-8")
@pytest.mark.parametrize(("dtype", "scales"), [("bfloat16", 0), ("int8", 2)])
def test_of_a_cache_the_pages_of_rows_count_as_moved(dtype, scales, compile_devices):
    batch, pages, page, heads, key_heads, width = 2, 4, 64, 8, 2, 128
    one = jax.sharding.SingleDeviceSharding(compile_devices[0])
    given = partial(jax.ShapeDtypeStruct, sharding=one)
    pool = given((4096, page, key_heads, width), dtype)
    scale = given(pool.shape[:3], "float32") if scales else None
    inputs = DecodeInputs(
        given((batch, 1, heads, width), "bfloat16"),
        pool,
        pool,
        given((batch,), "int32"),
        page_table_BP=given((batch, pages), "int32"),
        key_scale_MCK=scale,
        value_scale_MCK=scale,
    )
    decode = jax.jit(lambda inputs: gpu_decode_attention(inputs, DecodeSpec(scale=0.1)))
    program = parse_program(decode.lower(inputs).compile().as_text())
    [moved] = [
        bytes_moved(program, instruction, computation)
        for computation in program.computations.values()
        for instruction in computation.instructions
        if "mosaic_gpu" in instruction.text
    ]
    keys = batch * pages * page * key_heads
    cache = keys * (2 * width * jnp.dtype(dtype).itemsize + 4 * scales)
    queries, means, sums = 64 * width * 2, 8 * width * 4, 64 * 4  # in rows of products, by share
    assert moved == cache + batch * key_heads * (queries + pages * (means + sums))


class TestCompile(CompileSuite):
    plugin = "axl-gpu"
    keys = KEY
    targets = ("gpu-h100-8",)
    calls = {"gpu_decode_attention": ('custom_call_target="mosaic_gpu', 1)}

    def cases(self, kernel):
        def case(name, **fields):
            sizes = {"heads": 32, "key_heads": 8, "width": 128, "value_width": 128}
            rows = {"lengths": (4000, 17) * 4, "capacity": 4096}
            return decode_case(DecodeTestCase(name=name, **{**sizes, **rows, **fields}))

        every = {"has_sinks": True, "spec": {"left": 1000, "soft_cap": 30.0}}
        return (
            case("paged", page_size=64),
            case("contiguous", capacity=4040),
            case("everything", page_size=16, queries=4, **every),
            case("wide", page_size=128, width=256, value_width=256),
            case("prompt", page_size=64, queries=512, lengths=(4000,)),
            case("int8", page_size=16, narrow="int8"),
            case("float8", page_size=64, narrow="float8_e4m3fn", key_heads=2, heads=8),
            case("int8_contiguous", capacity=4040, narrow="int8", key_heads=4, **every),
            case("int8_wide", page_size=8, width=256, value_width=256, narrow="int8"),
        )


class TestCompileForH200(TestCompile):
    targets = ("gpu-h200-8",)

    def cases(self, kernel):
        return tuple(one for one in super().cases(kernel) if one.name in ("everything", "int8"))


@pytest.mark.compile("gpu-h100-8")
@pytest.mark.parametrize(
    "narrow", [None, "int8", "float8_e4m3fn"], ids=["16_bits", *QUANTIZED_DTYPES]
)
@pytest.mark.parametrize("width", [128, 256])
def test_registers_suffice(narrow, width, compile_devices, capfd, monkeypatch):
    monkeypatch.setenv(ptxas.REPORTS, "1")
    sizes = {"heads": 32, "key_heads": 8, "width": width, "value_width": width}
    given = sample("own", queries=4, capacity=4096, page_size=64, narrow=narrow, **sizes)
    one = jax.sharding.SingleDeviceSharding(compile_devices[0])
    inputs = jax.eval_shape(lambda: given.make("bfloat16")[0])
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one), inputs)
    spec = DecodeSpec(scale=0.1, left=900, soft_cap=30.0)
    jax.jit(lambda inputs: gpu_decode_attention(inputs, spec)).lower(abstract).compile()
    spilled = ptxas.spilled_bytes("".join(capfd.readouterr()))
    assert spilled == {"decode_attention": 0}
