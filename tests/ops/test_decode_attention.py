"""Decode attention is attention on the tokens of a cache, wherever the cache keeps them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.errors import KernelError
from axcore.ops import attention, decode_attention
from axcore.ops.contract import TOLERANCES, relative_error
from axcore.ops.decode_attention.contract import DECODE_TEST_CASES, DecodeTestCase
from axcore.ops.decode_attention.kernels import (
    BLOCK_SIZES,
    KeyBlock,
    decode_attention_portable,
    decode_attention_reference,
)
from axcore.ops.decode_attention.op import DECODE_ATTENTION_OP
from axcore.plugins import Hardware

SAMPLES = {sample.name: sample for sample in DECODE_TEST_CASES}
SMALL = [name for name, sample in SAMPLES.items() if "long" not in name and sample.width < 80]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.quick_one_in(8)
def test_blocks_equal_the_reference(name):
    inputs, spec = SAMPLES[name].make()
    with BLOCK_SIZES.forced(KeyBlock(16, 2)):
        got = jax.jit(partial(decode_attention_portable, spec=spec))(inputs)
    want = jax.jit(partial(decode_attention_reference, spec=spec))(inputs)
    assert relative_error(got, want) <= TOLERANCES["float32"].forward


@pytest.mark.parametrize("name", ["int8", "int8_paged", "float8"])
def test_narrow_keys_and_values_are_those_that_their_scales_make_of_them(name):
    sample = SAMPLES[name]
    inputs, spec = sample.make()
    scales = (inputs.key_scale_MCK, inputs.value_scale_MCK)
    cache = {"page_table_BP": inputs.page_table_BP, "scale": spec.scale}
    k, v = (
        jnp.asarray(x, jnp.float32) * scale[..., None]
        for x, scale in zip((inputs.k, inputs.v), scales, strict=True)
    )
    want = decode_attention(
        inputs.q_BTNH, jnp.asarray(k), jnp.asarray(v), inputs.lengths_B, **cache
    )
    got = decode_attention(*inputs[:4], scales=scales, **cache)
    assert relative_error(got, want) <= 1e-5


def test_bfloat16_accumulates_in_float32():
    inputs, spec = SAMPLES["everything"].make("bfloat16")
    got = jax.jit(partial(decode_attention_portable, spec=spec))(inputs)
    assert got.dtype == jnp.bfloat16
    want = jax.jit(partial(decode_attention_reference, spec=spec))(inputs)
    assert relative_error(got, want) <= TOLERANCES["bfloat16"].forward


@pytest.mark.parametrize("name", ["several_queries", "window", "everything"])
def test_each_row_equals_attention_on_its_own_tokens(name):
    sample = SAMPLES[name]
    inputs, spec = sample.make()
    choices = {"scale": spec.scale, "soft_cap": spec.soft_cap, "sinks_N": inputs.sinks_N}
    cache = {"page_table_BP": inputs.page_table_BP, "window": spec.left}
    o = jax.jit(lambda *given: decode_attention(*given, **cache, **choices))(*inputs[:4])
    for row, length in enumerate(sample.lengths):
        newest = min(sample.queries, length)
        k, v = (np.asarray(x) for x in (inputs.k, inputs.v))
        if inputs.page_table_BP is None:
            k, v = k[row, :length], v[row, :length]
        else:
            pages = np.asarray(inputs.page_table_BP[row])[: -(-length // sample.page_size)]
            k, v = (x[pages].reshape(-1, *x.shape[2:])[:length] for x in (k, v))
        masks = {"window": (spec.left, None), "query_offset": length - newest}
        attend = jax.jit(partial(attention, causal=True, **masks, **choices))
        alone = attend(inputs.q_BTNH[row : row + 1, sample.queries - newest :], k[None], v[None])
        assert not o[row, : sample.queries - newest].any()
        assert relative_error(o[row, sample.queries - newest :], alone[0]) <= 1e-5


@pytest.mark.slow
def test_token_by_token_equals_all_tokens_at_once():
    numbers = np.random.default_rng(0)
    q, k, v = (
        jnp.asarray(numbers.standard_normal((2, 12, heads, 8), np.float32)) for heads in (4, 2, 2)
    )
    whole = attention(q, k, v, causal=True, window=(5, None))
    step = jax.jit(partial(decode_attention, window=5))
    cache = [jnp.full((2, 16, 2, 8), jnp.nan)] * 2
    for t in range(12):
        cache = [old.at[:, t].set(new[:, t]) for old, new in zip(cache, (k, v), strict=True)]
        o = step(q[:, t : t + 1], *cache, jnp.full((2,), t + 1, jnp.int32))
        assert relative_error(o[:, 0], whole[:, t]) <= 1e-5


@pytest.mark.parametrize("length", [1, 400])
def test_work_ends_with_the_longest_row_and_begins_with_the_window(length, monkeypatch):
    inputs, spec = SAMPLES["long"].make()
    seen = []

    def note(first, last):
        seen.append((int(first), int(last)))

    def counted(first, last, step, start):
        jax.debug.callback(note, first, last, ordered=True)
        return loop(first, last, step, start)

    loop = jax.lax.fori_loop
    monkeypatch.setattr(jax.lax, "fori_loop", counted)
    short = inputs._replace(lengths_B=jnp.minimum(inputs.lengths_B, length))
    windowed = short._replace(lengths_B=jnp.full_like(short.lengths_B, length))
    with BLOCK_SIZES.forced(KeyBlock(16, 2)):
        decode_attention_portable(short, spec)
        decode_attention_portable(windowed, type(spec)(scale=spec.scale, left=8))
    jax.effects_barrier()
    assert seen == [(0, -(-length // 16)), (max(length - 9, 0) // 16, -(-length // 16))]


@pytest.mark.parametrize(
    ("hardware", "queries", "block"),
    [
        ("cpu-1", 1, KeyBlock(32, 4)),
        ("cpu-1", 16, KeyBlock(32, 4)),
        ("cpu-1", 17, KeyBlock(256, 0)),
        ("trn2-16", 1, KeyBlock(256, 0)),
    ],
)
def test_blocks_are_small_where_a_host_copies_them_for_few_queries(hardware, queries, block):
    inputs, spec = DecodeTestCase(name="blocks", queries=queries).make()
    entry = BLOCK_SIZES.entry(DECODE_ATTENTION_OP.call(inputs, spec), Hardware.parse(hardware))
    assert entry.block_sizes == block


def test_a_row_has_the_same_bits_whatever_rows_are_beside_it():
    lengths = (37, 5, 40, 0, 12, 33, 1, 26)
    inputs, spec = DecodeTestCase(name="rows", lengths=lengths, page_size=8).make()
    attend = jax.jit(partial(decode_attention_portable, spec=spec))
    alone = attend(inputs._replace(lengths_B=inputs.lengths_B * jnp.eye(8, dtype=jnp.int32)[2]))
    assert (attend(inputs)[2] == alone[2]).all()
    with BLOCK_SIZES.forced(KeyBlock(32, 0)):
        together = jax.jit(partial(decode_attention_portable, spec=spec))(inputs)
    assert relative_error(attend(inputs), together) <= TOLERANCES["float32"].forward


def test_nothing_of_the_cache_is_copied_but_a_block():
    q = jax.ShapeDtypeStruct((1, 1, 4, 64), jnp.float32)
    cache = jax.ShapeDtypeStruct((1, 2**15, 4, 64), jnp.float32)
    length = jax.ShapeDtypeStruct((1,), jnp.int32)
    compiled = jax.jit(decode_attention).lower(q, cache, cache, length).compile()
    cache_bytes = 4 * 2**15 * 4 * 64
    assert compiled.memory_analysis().temp_size_in_bytes < cache_bytes / 16


Q, CACHE, LENGTHS = jnp.ones((2, 1, 4, 8)), jnp.ones((2, 6, 2, 8)), jnp.asarray([3, 4])
TABLE = jnp.zeros((2, 3), jnp.int32)


@pytest.mark.parametrize(
    ("arrays", "choices", "message"),
    [
        ((Q[0], CACHE, CACHE, LENGTHS), {}, r"expected 4 dimensions each: q BTNH \(1, 4, 8\)"),
        (
            (Q, CACHE, CACHE.astype(jnp.bfloat16), LENGTHS),
            {},
            r"dtypes are q float32, k float32, v bfloat16; expected one floating",
        ),
        ((Q, CACHE, CACHE[:, :5], LENGTHS), {}, r"k and v differ in more than their width"),
        ((Q, CACHE[:1], CACHE[:1], LENGTHS), {}, r"batch sizes differ and there is no page table"),
        ((Q, CACHE[:, :0], CACHE[:, :0], LENGTHS), {}, r"the cache has no room for a key"),
        ((Q[..., :4], CACHE, CACHE, LENGTHS), {}, r"q and k have different widths"),
        ((Q[:, :, :3], CACHE, CACHE, LENGTHS), {}, r"query heads are not a multiple of the key"),
        ((Q, CACHE, CACHE, LENGTHS[:1]), {}, r"lengths are int32 of shape \(1,\); expected integ"),
        ((Q, CACHE, CACHE, jnp.ones(2)), {}, r"lengths are float32 of shape \(2,\)"),
        ((Q, CACHE, CACHE, LENGTHS), {"page_table_BP": TABLE[:1]}, r"page_table are int32 of sha"),
        (
            (Q, CACHE, CACHE, LENGTHS),
            {"scales": (CACHE[..., 0],) * 2},
            r"there are scales, and k is float32, v float32; expected one of int8, float8_e4m3fn",
        ),
        (
            (Q, CACHE.astype(jnp.int8), CACHE.astype(jnp.int8), LENGTHS),
            {"scales": (CACHE[..., 0], CACHE[:1, ..., 0])},
            r"scales are float32 of shape \(1, 6, 2\); expected float32 \(2, 6, 2\)",
        ),
        ((Q, CACHE, CACHE, LENGTHS), {"sinks_N": jnp.ones(2)}, r"sinks are float32 of shape \(2"),
        ((Q, CACHE, CACHE, LENGTHS), {"window": -1}, r"decode_attention: window is \(-1, 0\)"),
        ((Q, CACHE, CACHE, LENGTHS), {"soft_cap": -1.0}, r"decode_attention: soft_cap is -1.0"),
    ],
)
def test_misfits_are_named(arrays, choices, message):
    with pytest.raises(KernelError, match=message):
        decode_attention(*arrays, **choices)


def test_its_gradient_is_refused_by_name():
    with pytest.raises(KernelError, match="its gradient is asked for, and it has none"):
        jax.grad(lambda q: jnp.sum(decode_attention(q, CACHE, CACHE, LENGTHS)))(Q)
