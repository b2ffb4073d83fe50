"""Our decode attention for Hoppers: interpreted, around it with plain arithmetic, and compiled."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from axl_gpu.kernels.attention.matmuls import ARITHMETIC
from axl_gpu.kernels.decode.api import (
    BLOCK_SIZES,
    DecodeBlockSizes,
    gpu_decode_attention,
    unsupported_reason,
)
from axl_gpu.kernels.decode.kernel import KEYS, partial_sums
from mosaic_interpreter import INTERPRETER

from axcore.ops import Call
from axcore.ops.decode.reference import decode_attention_reference
from axcore.ops.dispatch.tolerance import relative_error
from axcore.testing import CompileSuite, KernelSuite
from axcore.testing.decode_attention_contract import DecodeTestCase, decode_case

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


def plain_sums(arrays, choices):
    """Plain JAX in the kernel's place: the same shares, each with the softmax of its keys."""
    batch = arrays.q_BKIH.shape[0]

    def by_row(pool):
        kept = jnp.take(pool, arrays.table_BP, axis=0, mode="clip")
        return kept.reshape(batch, -1, *pool.shape[2:]).astype(jnp.float32)

    k, v = by_row(arrays.k_MCKH), by_row(arrays.v_MCKV)
    key = jnp.arange(k.shape[1])[None]
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


class TestAround(KernelSuite):
    """What is around the kernel: shares, sinks, meshes and batches of calls."""

    plugin = "axl-gpu"
    keys = KEY
    dtypes = ("bfloat16",)
    case_names = ("wide", "paged_wide", "everything")

    def implementation(self, kernel):
        return partial(gpu_decode_attention, kernel=plain_sums)

    def extra_cases(self, kernel):
        return (
            decode_case(sample("wide")),
            decode_case(sample("paged_wide", page_size=8)),
            decode_case(EVERYTHING),
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        sample("contiguous", capacity=72, lengths=(67, 5)),
        sample("small_pages", page_size=8, lengths=(90, 0)),
        sample("large_pages", page_size=320, capacity=640, lengths=(599, 17)),
        EVERYTHING,
    ],
    ids=lambda one: one.name,
)
def test_the_kernel_interpreted_equals_the_reference(given):
    inputs, spec = given.make("bfloat16")
    with BLOCK_SIZES.forced(DecodeBlockSizes(blocks_per_processor=1, stages=2)):
        got = jax.jit(lambda inputs: gpu_decode_attention(inputs, spec, kernel=INTERPRETED))(inputs)
    wanted = decode_attention_reference(inputs, spec)
    assert relative_error(got.astype("float32"), wanted.astype("float32")) < 6e-3


def call_of(dtype="bfloat16", q=(2, 1, 8, 128), k=(2, 64, 2, 128), table=None):
    shapes = (("q", q), ("k", k), ("v", k), *((("page_table", table),) if table else ()))
    return Call(op="decode_attention", shapes=shapes, dtypes=(("q", dtype),))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (call_of(dtype="float32"), "not float32"),
        (call_of(q=(0, 1, 8, 128)), "no empty array"),
        (call_of(q=(2, 17, 8, 128)), "not 17 times 4"),
        (call_of(k=(2, 64, 2, 80)), "multiples of 64 up to 256, not 80"),
        (call_of(k=(2, 56, 2, 128)), "a multiple of 8 keys from 64 up, not 56"),
        (call_of(k=(2, 1001, 2, 128)), "not 1001"),
        (call_of(k=(9, 48, 2, 128), table=(2, 4)), "multiples of 64 keys, not 48"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(call, reason):
    assert reason in unsupported_reason(call)


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
        )
