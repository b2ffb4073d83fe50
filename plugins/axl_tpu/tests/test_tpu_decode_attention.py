"""Decode attention by our Pallas kernel: interpreted against the reference, and compiled."""

from functools import partial

import jax
import pytest
from axl_tpu.kernels.decode.api import (
    BLOCK_SIZES,
    DecodeBlockSizes,
    tpu_decode_attention,
    unsupported_reason,
)
from axl_tpu.kernels.decode.block import NARROW_TILE, CacheBlocking
from axl_tpu.kernels.decode.prompt import tpu_prompt_attention
from axl_tpu.kernels.decode.prompt import unsupported_reason as prompt_unsupported_reason
from pallas_races import CAREFUL, check_no_race_was_printed

from axcore.ops import Call
from axcore.ops.contract import relative_error
from axcore.ops.decode_attention.kernels import decode_attention_reference
from axcore.plugins import Hardware
from axcore.testing import CompileSuite, KernelSuite
from axcore.testing.contracts import DecodeTestCase, decode_case

KEYS = ("decode_attention/tpu_decode_attention",)


def in_tiles(rows, interpret):
    def kernel(*args):
        with BLOCK_SIZES.forced(DecodeBlockSizes(rows)):
            return tpu_decode_attention(*args, interpret=interpret)

    return kernel


class TestKernel(KernelSuite):
    plugin = "axl-tpu"
    keys = KEYS
    dtypes = ("float32",)
    case_names = ("plain", "full_and_empty", "paged", "int8_paged")

    def implementation(self, kernel):
        return partial(tpu_decode_attention, interpret=jax.default_backend() != "tpu")


@pytest.mark.slow
class TestKernelOnEveryCase(TestKernel):
    dtypes = ("float32", "bfloat16")
    case_names = None

    def implementation(self, kernel):
        return in_tiles(64, jax.default_backend() != "tpu")

    def extra_cases(self, kernel):
        every = {"has_sinks": True, "spec": {"left": 70, "soft_cap": 3.0}, "queries": 2}
        return (
            decode_case(DecodeTestCase(name="odd_pages", page_size=5, capacity=60, key_heads=1)),
            decode_case(
                DecodeTestCase(name="parts", lengths=(599, 8), capacity=800, page_size=200, **every)
            ),
            decode_case(
                DecodeTestCase(
                    name="int8_parts",
                    lengths=(599, 8),
                    capacity=800,
                    page_size=200,
                    narrow="int8",
                    **every,
                )
            ),
        )


def prompt_case(name, **fields):
    sizes = {"heads": 8, "key_heads": 2, "queries": 80, "capacity": 120, "lengths": (117, 80)}
    return decode_case(DecodeTestCase(name=name, **{**sizes, **fields}))


@pytest.mark.slow
class TestPromptKernel(KernelSuite):
    """It takes no case of the op's own: those have few queries."""

    plugin = "axl-tpu"
    keys = ("decode_attention/tpu_prompt_attention",)
    dtypes = ("float32",)
    case_names = ("prompt", "prompt_paged", "prompt_everything")

    def implementation(self, kernel):
        return partial(tpu_prompt_attention, interpret=jax.default_backend() != "tpu")

    def extra_cases(self, kernel):
        every = {"has_sinks": True, "spec": {"left": 70, "soft_cap": 3.0}}
        return (
            prompt_case("prompt"),
            prompt_case("prompt_paged", page_size=8),
            prompt_case("prompt_everything", page_size=40, lengths=(90, 3), **every),
        )


def test_prompts_and_decoding_share_calls_out_between_them():
    for queries in (1, 64, 65, 512):
        sample = DecodeTestCase(name="shared", queries=queries, heads=8, capacity=640)
        call = decode_case(sample).call(*sample.make("bfloat16"))
        refusals = (unsupported_reason(call), prompt_unsupported_reason(call))
        assert [one is None for one in refusals] == [queries <= 64, queries > 64]


@pytest.mark.slow
def test_copies_do_not_race_and_padding_is_not_seen(capsys):
    """Small pages, of which several make a block, and pages that are cut."""
    for page_size in (8, 40):
        sample = DecodeTestCase(
            name="careful", lengths=(77, 0, 9), capacity=80, page_size=page_size
        )
        inputs, spec = sample.make()
        got = jax.jit(lambda inputs: in_tiles(32, CAREFUL)(inputs, spec))(inputs)  # noqa: B023
        assert relative_error(got, decode_attention_reference(inputs, spec)) < 1e-5
    check_no_race_was_printed(capsys)


@pytest.mark.parametrize(
    "cut",
    [
        CacheBlocking.of(page=8, pages_of_row=9, key_heads=2, block_keys=32),
        CacheBlocking.of(page=5, pages_of_row=9, key_heads=4, block_keys=32),
        CacheBlocking.of(page=100, pages_of_row=3, key_heads=1, block_keys=32),
        CacheBlocking.of(page=601, pages_of_row=1, key_heads=12, block_keys=50),
        CacheBlocking.of(page=8, pages_of_row=9, key_heads=2, block_keys=32, tile=NARROW_TILE),
    ],
    ids=["several_pages", "odd_pages", "parts", "one_page", "8_bits"],
)
def test_every_key_of_a_row_is_in_one_block_and_is_found_there(cut):
    num_keys = cut.page * (9 if cut.page < 32 else 3)
    found = {}
    for block in range(int(cut.block_of(num_keys - 1)) + 1):
        for key in range(cut.keys):
            position, is_own = cut.positions(key, block)
            if is_own and position < num_keys:
                assert int(position) not in found
                found[int(position)] = block
    assert found == {key: int(cut.block_of(key)) for key in range(num_keys)}


def call_of(dtype="bfloat16", q=(2, 1, 8, 128), k=(2, 64, 2, 128)):
    shapes = (("q", q), ("k", k), ("v", k))
    return Call(op="decode_attention", shapes=shapes, dtypes=(("q", dtype),))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (call_of(dtype="float16"), "not float16"),
        (call_of(q=(0, 1, 8, 128)), "no empty array"),
        (call_of(q=(2, 65, 8, 128)), "not 65 times 8"),
        (call_of(q=(2, 1, 8, 1024), k=(2, 64, 2, 1024)), "widths of k up to 512, not 1024"),
        (call_of(q=(2, 1, 128, 64), k=(2, 64, 128, 64)), "up to 64 key heads, not 128"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(call, reason):
    assert reason in unsupported_reason(call)


def test_scales_of_another_float8_are_refused_with_the_reason():
    sample = DecodeTestCase(name="float8", narrow="float8_e5m2")
    call = decode_case(sample).call(*sample.make("bfloat16"))
    assert "not of float8_e5m2" in unsupported_reason(call)


@pytest.mark.parametrize(
    ("dtype", "q", "k", "rows"),
    [
        ("bfloat16", (2, 1, 32, 128), (2, 64, 8, 128), 2048),
        ("bfloat16", (2, 16, 32, 512), (2, 64, 8, 512), 512),
        ("float32", (2, 16, 32, 512), (2, 64, 8, 512), 256),
    ],
)
def test_blocks_shrink_as_calls_grow(dtype, q, k, rows):
    entry = BLOCK_SIZES.entry(call_of(dtype, q, k), Hardware.parse("tpu-v5e-8"))
    assert entry.block_sizes == DecodeBlockSizes(rows)


class TestCompile(CompileSuite):
    plugin = "axl-tpu"
    keys = KEYS
    targets = ("tpu-v5e-8", "tpu-v5p-8", "tpu-v6e-8")
    calls = {"tpu_decode_attention": ('custom_call_target="tpu_custom_call"', 1)}

    def cases(self, kernel):
        def case(name, lengths=(4000, 17) * 8, capacity=4096, heads=32, **fields):
            sizes = {"heads": heads, "key_heads": 8, "width": 128, "value_width": 128}
            return decode_case(
                DecodeTestCase(name=name, lengths=lengths, capacity=capacity, **{**sizes, **fields})
            )

        every = {"has_sinks": True, "spec": {"left": 1000, "soft_cap": 30.0}}
        return (
            case("paged", page_size=16),
            case("everything", page_size=64, queries=4, **every),
            case("large_pages", page_size=512, key_heads=1, heads=16),
            case("contiguous", key_heads=32),
            case("odd", capacity=1001, key_heads=2, heads=6, width=80, value_width=64),
            case("wide", capacity=2048, key_heads=4, heads=8, width=256, value_width=256),
            case("largest", queries=16, width=512, value_width=512),
            case("int8", page_size=16, narrow="int8"),
            case("float8", page_size=64, narrow="float8_e4m3fn", key_heads=2, heads=8),
            case("int8_contiguous", capacity=1001, narrow="int8", key_heads=4, **every),
        )


class TestPromptCompile(CompileSuite):
    plugin = "axl-tpu"
    keys = ("decode_attention/tpu_prompt_attention",)
    targets = ("tpu-v5p-8",)
    calls = {"tpu_prompt_attention": ('custom_call_target="tpu_custom_call"', 1)}

    def cases(self, kernel):
        sizes = {"queries": 512, "heads": 32, "key_heads": 8, "width": 128, "value_width": 128}
        sample = DecodeTestCase(
            name="prompt", lengths=(1700,), capacity=2048, page_size=64, **sizes
        )
        return (decode_case(sample),)
