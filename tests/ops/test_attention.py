"""Portable attention means what the reference means: forward, backward, at every size."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.aot.hlo.program import parse_program
from axcore.ops.attention.blockwise import blockwise_backward, blockwise_forward
from axcore.ops.attention.contract import ATTENTION_TEST_CASES
from axcore.ops.attention.kernels import attention_dense, attention_portable, attention_reference
from axcore.ops.attention.mask import dropout_seeds
from axcore.ops.attention.op import AttentionInputs, AttentionSpec, attention_custom_vjp
from axcore.ops.contract import TOLERANCES, relative_error

blockwise = partial(
    attention_custom_vjp,
    forward=partial(blockwise_forward, block_size=16),
    backward=partial(blockwise_backward, block_size=16),
)
SAMPLES = {sample.name: sample for sample in ATTENTION_TEST_CASES}
IN_BFLOAT16 = ("causal", "width_80", "segments", "everything")
QUICK = (
    "plain",
    "causal",
    "width_80",
    "window",
    "segments",
    "ranges",
    "sinks",
    "bias",
    "everything",
)
CASES = [(name, "float32") for name in SAMPLES] + [(name, "bfloat16") for name in IN_BFLOAT16]
ROWS = [pytest.param(*case, marks=[] if case[0] in QUICK else [pytest.mark.slow]) for case in CASES]


def run(attend, inputs, spec):
    """Return outputs, and gradients of the floating inputs for fixed output gradients."""
    is_float = [x is not None and jnp.issubdtype(x.dtype, jnp.floating) for x in inputs]

    def merged(floats):
        given = iter(floats)
        parts = zip(inputs, is_float, strict=True)
        return AttentionInputs(*(next(given) if floating else x for x, floating in parts))

    def loss(floats):
        o, lse = attend(merged(floats), spec)
        seen = jnp.where(jnp.isneginf(lse), 0.0, lse)
        shifted = o.astype(jnp.float32) + jnp.linspace(0.0, 1.0, o.size).reshape(o.shape)
        total = 3.0 * jnp.sum(jnp.cos(shifted)) + jnp.sum(jnp.sin(seen))
        return total, (o, lse)

    floats = [x for x, floating in zip(inputs, is_float, strict=True) if floating]
    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (_, outputs), gradients = step(floats)
    return outputs, gradients


@pytest.mark.parametrize(("name", "dtype"), ROWS)
@pytest.mark.quick_one_in(14)
def test_whole_and_blockwise_equal_the_reference(name, dtype):
    inputs, spec = SAMPLES[name].make(dtype)
    outputs, gradients = run(attention_reference, inputs, spec)
    tolerance = TOLERANCES[dtype]
    for attend in (attention_dense, blockwise):
        got_outputs, got_gradients = run(attend, inputs, spec)
        for got, want in zip(got_outputs, outputs, strict=True):
            assert got.dtype == want.dtype
            assert relative_error(got, want) <= tolerance.forward
        for got, want in zip(got_gradients, gradients, strict=True):
            assert got.dtype == want.dtype
            assert relative_error(got, want) <= tolerance.backward


@pytest.mark.parametrize("part", ["bias", "segments"])
def test_reference_gradient_equals_finite_difference(part):
    sample = {"bias": SAMPLES["bias"], "segments": SAMPLES["segments"]}[part]
    inputs, spec = sample.make()
    direction = jnp.cos(jnp.arange(inputs.q_BTNH.size)).reshape(inputs.q_BTNH.shape)

    def loss(step):
        moved = inputs._replace(q_BTNH=inputs.q_BTNH + step * direction)
        return jnp.sum(jnp.sin(attention_reference(moved, spec)[0]))

    step = jax.jit(jax.value_and_grad(loss))
    (before, _), (_, gradient), (after, _) = (step(jnp.float32(x)) for x in (-1e-2, 0.0, 1e-2))
    assert float(gradient) == pytest.approx(float(after - before) / 2e-2, rel=2e-3)


def test_blocks_hidden_by_causality_and_window_are_not_computed():
    inputs, _ = SAMPLES["causal"].make()
    hidden = inputs._replace(
        k_BSKH=inputs.k_BSKH.at[:, :8].set(jnp.nan), v_BSKV=inputs.v_BSKV.at[:, :8].set(jnp.nan)
    )
    spec = AttentionSpec(scale=1.0, left=3, right=0)
    forward = partial(blockwise_forward, spec=spec, block_size=8)
    o, _ = jax.jit(forward)(hidden)
    assert jnp.isnan(o[:, 8:11]).any()
    assert not jnp.isnan(o[:, 16:]).any()


@pytest.mark.parametrize("part", ["segments", "ranges", "offsets"])
@pytest.mark.quick_one_in(3)
def test_blocks_hidden_by_documents_ranges_or_offsets_are_not_computed(part):
    """Where a hidden block is computed, the NaN in its values reaches what does not see it."""
    inputs, _ = SAMPLES["plain"].make()
    q, k, v = (x[:, :32] for x in inputs[:3])
    halves = jnp.broadcast_to(jnp.arange(32, dtype=jnp.int32) // 16, (2, 32))
    parts = {
        "segments": {"q_segments_BT": halves + 1, "k_segments_BS": halves + 1},
        "ranges": {"k_start_BT": 16 * halves, "k_end_BT": 16 * halves + 16},
        "offsets": {"query_offset_B": jnp.full((2,), 16, jnp.int32)},
    }[part]
    spec = AttentionSpec(scale=1.0, left=0 if part == "offsets" else None, right=0)
    hidden = AttentionInputs(q, k, v.at[:, :16].set(jnp.nan), **parts)
    seen = slice(0, 16) if part == "offsets" else slice(16, 32)

    def loss(q, k, v):
        o, _ = blockwise(hidden._replace(q_BTNH=q, k_BSKH=k, v_BSKV=v), spec)
        return jnp.sum(o[:, seen]), o

    step = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))
    gradients, o = step(*hidden[:3])
    assert not jnp.isnan(o[:, seen]).any()
    assert part == "offsets" or jnp.isnan(o[:, :16]).all()
    assert not jnp.isnan(gradients[0][:, seen]).any()
    assert not jnp.isnan(gradients[1][:, 16:]).any()


@pytest.mark.slow
def test_padding_keys_change_nothing():
    inputs, spec = SAMPLES["plain"].make()
    extra = jnp.full((2, 9, 2, 16), 1e4)
    padded = inputs._replace(
        k_BSKH=jnp.concatenate([inputs.k_BSKH, extra], axis=1),
        v_BSKV=jnp.concatenate([inputs.v_BSKV, extra], axis=1),
        q_segments_BT=jnp.ones((2, 37), jnp.int32),
        k_segments_BS=jnp.pad(jnp.ones((2, 37), jnp.int32), ((0, 0), (0, 9))),
    )
    for attend in (attention_dense, blockwise):
        whole, cut = run(attend, inputs, spec), run(attend, padded, spec)
        assert relative_error(cut[0][0], whole[0][0]) <= 1e-6
        assert relative_error(cut[1][1][:, :37], whole[1][1]) <= 1e-6
        assert not cut[1][1][:, 37:].any()


@pytest.mark.slow
def test_packed_documents_equal_documents_alone():
    inputs, spec = SAMPLES["segments"].make()
    (o, lse), _ = run(blockwise, inputs, spec)
    ids = np.asarray(inputs.q_segments_BT[0])
    for document in (1, 2, 3):
        at = np.flatnonzero(ids == document)
        alone = AttentionInputs(*(jnp.asarray(np.asarray(x)[:1, at]) for x in inputs[:3]))
        (alone_o, alone_lse), _ = run(attention_reference, alone, spec)
        assert relative_error(o[:1, at], alone_o) <= 1e-5
        assert relative_error(lse[:1, at], alone_lse) <= 1e-5


@pytest.mark.slow
def test_halves_of_the_keys_merge_by_log_sum_exp():
    inputs, spec = SAMPLES["plain"].make()
    (left, left_lse), (right, right_lse) = (
        run(
            blockwise,
            inputs._replace(k_BSKH=inputs.k_BSKH[:, at], v_BSKV=inputs.v_BSKV[:, at]),
            spec,
        )[0]
        for at in (slice(0, 20), slice(20, None))
    )
    lse = jnp.logaddexp(left_lse, right_lse)
    merged = left * jnp.exp(left_lse - lse)[..., None] + right * jnp.exp(right_lse - lse)[..., None]
    (o, whole_lse), _ = run(attention_reference, inputs, spec)
    assert relative_error(merged, o) <= 1e-5
    assert relative_error(lse, whole_lse) <= 1e-5


@pytest.mark.slow
def test_dropout_keeps_the_asked_share_and_depends_on_the_seed():
    inputs, spec = SAMPLES["dropout"].make()
    ones = inputs._replace(
        v_BSKV=jnp.ones_like(inputs.v_BSKV), q_BTNH=jnp.zeros_like(inputs.q_BTNH)
    )
    (o, _), _ = run(blockwise, ones, spec)
    assert abs(float(o[:, 20:].mean()) - 1.0) < 0.02
    seeds_BN = dropout_seeds(jnp.uint32(12), *inputs.dropout_seeds_BN.shape)
    (other, _), _ = run(blockwise, ones._replace(dropout_seeds_BN=seeds_BN), spec)
    assert not jnp.allclose(o, other)


def test_long_attention_needs_an_eighth_of_the_memory_of_the_reference():
    def temporaries(attend):
        shape = jax.ShapeDtypeStruct((1, 8192, 1, 64), jnp.float32)

        def loss(q, k, v):
            spec = AttentionSpec(scale=0.125, right=0)
            return jnp.sum(attend(AttentionInputs(q, k, v), spec)[0])

        compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(shape, shape, shape)
        compiled = compiled.compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert 8 * temporaries(attention_portable) <= temporaries(attention_reference)


def test_memory_grows_linearly_with_length():
    def temporaries(length):
        shape = jax.ShapeDtypeStruct((1, length, 1, 64), jnp.bfloat16)

        def loss(q):
            spec = AttentionSpec(scale=0.125, right=0)
            return jnp.sum(
                attention_portable(AttentionInputs(q, q, q), spec)[0].astype(jnp.float32)
            )

        return jax.jit(jax.grad(loss)).lower(shape).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(16384) < 2.2 * temporaries(8192)


def test_small_attention_costs_the_flops_of_plain_softmax():
    inputs, spec = SAMPLES["causal"].make()
    given = [jnp.tile(x, (2, 6, 1, 4)) for x in inputs[:3]]
    given[1:] = [jnp.tile(x, (1, 1, 2, 1)) for x in given[1:]]

    def plain(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)

    def ours(q, k, v):
        return attention_portable(AttentionInputs(q, k, v), spec)[0]

    def flops(attend):
        def step(q, k, v):
            o, gradients = jax.vjp(attend, q, k, v)
            return o, gradients(jnp.sin(o))

        return jax.jit(step).lower(*given).compile().cost_analysis()["flops"]

    assert flops(ours) <= 1.01 * flops(plain)


def test_backward_transposes_no_scores():
    """Scores are the largest arrays: gradients of keys and values transpose themselves instead."""
    q, k = jnp.ones((2, 64, 4, 16)), jnp.ones((2, 64, 2, 16))

    def step(q, k, v):
        o, gradients = jax.vjp(partial(attend, spec=AttentionSpec(scale=0.25, right=0)), q, k, v)
        return gradients(o)

    def attend(q, k, v, spec):
        return attention_portable(AttentionInputs(q, k, v), spec)[0]

    program = parse_program(jax.jit(step).lower(q, k, k).compile().as_text())
    moved = [
        one.shape.size
        for computation in program.computations.values()
        for one in computation.instructions
        if one.opcode in ("transpose", "copy")
    ]
    assert moved
    assert max(moved) < 2 * 4 * 64 * 64
