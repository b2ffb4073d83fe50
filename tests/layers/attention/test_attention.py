"""Attention against loops over heads and queries, and the laws of grouped heads."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.errors import ConfigError
from axcore.layers import Attention, DotProductAttention, Linear, NoPosition, RoPE, TokenInfo
from axcore.module import functional

HEADS = 4
HEAD_DIM = 4


def _attend(q, k, v, segments, *, is_causal, left=None, scale=None, soft_cap=None):
    """Attention of one batch of heads, query by query, in float64."""
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    group = q.shape[2] // k.shape[2]
    for b, t, n in np.ndindex(*q.shape[:3]):
        seen = [
            s
            for s in range(k.shape[1])
            if (not is_causal or s <= t)
            and (left is None or s >= t - left)
            and segments[b, s] == segments[b, t] != 0
        ]
        if not seen:
            continue
        logits = k[b, seen, n // group] @ q[b, t, n] * (scale or 1 / math.sqrt(q.shape[-1]))
        if soft_cap:
            logits = soft_cap * np.tanh(logits / soft_cap)
        weights = np.exp(logits - logits.max())
        out[b, t, n] = weights / weights.sum() @ v[b, seen, n // group]
    return out


@pytest.fixture
def info():
    segments = np.array([[1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 0, 0]], np.int32)
    positions = np.array([[0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 0, 0]], np.int32)
    return TokenInfo(positions, segments)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, {"is_causal": True}),
        ({"is_causal": False}, {"is_causal": False}),
        ({"window": (1, None)}, {"is_causal": True, "left": 1}),
        ({"scale": 0.7, "soft_cap": 0.5}, {"is_causal": True, "scale": 0.7, "soft_cap": 0.5}),
    ],
)
def test_core_is_softmax_attention_by_query(call, random, info, fields, words):
    q, k, v = random(2, 6, 4, 4), random(2, 6, 2, 4), random(2, 6, 2, 3)
    core = DotProductAttention.Config(num_heads=4, **fields).build()
    np.testing.assert_allclose(
        call(core, {}, q, k, v, info), _attend(q, k, v, info.segment_ids, **words), atol=1e-5
    )


@pytest.mark.parametrize("num_kv_heads", [1, 2, None])
def test_attention_is_projections_around_rope_and_core(call, random, info, num_kv_heads):
    layer = Attention.Config(
        dim=16, num_heads=HEADS, num_kv_heads=num_kv_heads, position=RoPE.Config()
    ).build()
    state, x = layer.init(0), random(2, 6, 16)
    weight = {name: np.asarray(state[name]["weight"]) for name in ("q", "k", "v", "out")}
    q, k, v = ((x @ weight[name]).reshape(2, 6, -1, HEAD_DIM) for name in "qkv")
    rope = RoPE.Config(head_dim=HEAD_DIM).build()
    q, k = call(rope, {}, q, k, info.positions)
    mixed = _attend(q, k, v, info.segment_ids, is_causal=True)
    np.testing.assert_allclose(
        call(layer, state, x, info), mixed.reshape(2, 6, 16) @ weight["out"], atol=1e-5
    )


@pytest.mark.parametrize("num_kv_heads", [1, 2])
def test_grouped_heads_equal_heads_with_repeated_keys_and_values(call, random, info, num_kv_heads):
    grouped = Attention.Config(dim=16, num_heads=HEADS, num_kv_heads=num_kv_heads).build()
    full = Attention.Config(dim=16, num_heads=HEADS).build()
    state, x = grouped.init(0), random(2, 6, 16)

    def repeated(weight):
        heads = weight.reshape(16, num_kv_heads, HEAD_DIM)
        return np.repeat(heads, HEADS // num_kv_heads, axis=1).reshape(16, 16)

    widened = {**state, **{n: {"weight": repeated(state[n]["weight"])} for n in ("k", "v")}}
    np.testing.assert_allclose(
        call(grouped, state, x, info), call(full, widened, x, info), rtol=1e-5, atol=1e-6
    )


def test_explicit_head_size_is_free_of_dim(call, random, info):
    layer = Attention.Config(dim=6, num_heads=2, head_dim=8, position=NoPosition.Config()).build()
    state, x = layer.init(0), random(2, 6, 6)
    weight = {name: np.asarray(state[name]["weight"]) for name in ("q", "k", "v", "out")}
    q, k, v = ((x @ weight[name]).reshape(2, 6, 2, 8) for name in "qkv")
    mixed = _attend(q, k, v, info.segment_ids, is_causal=True).reshape(2, 6, 16)
    np.testing.assert_allclose(call(layer, state, x, info), mixed @ weight["out"], atol=1e-5)


def test_no_segments_is_one_document_a_row(call, random):
    layer = Attention.Config(dim=16, num_heads=HEADS).build()
    state, x = layer.init(0), random(2, 6, 16)
    positions = np.broadcast_to(np.arange(6, dtype=np.int32), (2, 6))
    np.testing.assert_allclose(
        call(layer, state, x, TokenInfo(positions)),
        call(layer, state, x, TokenInfo(positions, np.ones((2, 6), np.int32))),
        atol=1e-6,
    )


def test_sizes_that_do_not_divide_are_refused():
    with pytest.raises(ConfigError, match="num_heads is 4, not a multiple of num_kv_heads, 3"):
        Attention.Config(dim=16, num_heads=4, num_kv_heads=3).build()
    with pytest.raises(ConfigError, match=r"dim is 18, not a multiple of num_heads, 4\n.*head_dim"):
        Attention.Config(dim=18, num_heads=4).build()


def test_gradients_follow_finite_differences(random, info):
    """Along a random direction of each projection, through positions, mask and softmax."""
    layer = Attention.Config(dim=16, num_heads=HEADS, num_kv_heads=2).build()
    state, x, weights = layer.init(0), jnp.asarray(random(2, 6, 16)), random(2, 6, 16)

    def loss(state, info):
        return (functional(layer, state, x, info)[0] * weights).sum()

    run = jax.jit(jax.value_and_grad(loss))
    gradient = run(state, info)[1]
    for name in ("q", "k", "v", "out"):
        direction = random(*state[name]["weight"].shape)
        moved = [
            {**state, name: {"weight": state[name]["weight"] + step * direction}}
            for step in (1e-2, -1e-2)
        ]
        slope = (float(run(moved[0], info)[0]) - float(run(moved[1], info)[0])) / 2e-2
        told = float((np.asarray(gradient[name]["weight"]) * direction).sum())
        assert told == pytest.approx(slope, rel=2e-2, abs=1e-2)


def test_keys_and_values_may_have_projections_of_their_own(call, random, info):
    biased = Linear.Config(has_bias=True)
    cfg = Attention.Config(dim=16, num_heads=HEADS, num_kv_heads=2, value_linear=biased)
    layer, x = cfg.build(), random(2, 6, 16)
    state = layer.init(0)
    assert [name for name in state if "bias" in state[name]] == ["v"]
    plain = Attention.Config(dim=16, num_heads=HEADS, num_kv_heads=2).build()
    without = {**state, "v": {"weight": state["v"]["weight"]}}
    np.testing.assert_allclose(call(layer, state, x, info), call(plain, without, x, info))
    shifted = {**state, "v": {**state["v"], "bias": np.ones(8, np.float32)}}
    moved = np.ones(16) @ np.asarray(state["out"]["weight"])
    got = call(layer, shifted, x, info) - call(layer, state, x, info)
    seen = info.segment_ids != 0
    np.testing.assert_allclose(got[seen], np.broadcast_to(moved, got[seen].shape), atol=1e-5)


def test_core_takes_more_of_the_op_from_a_layer_around_it(call, random, info):
    """Here a bias under which every token sees itself only."""
    q, k, v = random(2, 6, 4, 4), random(2, 6, 2, 4), random(2, 6, 2, 3)
    core = DotProductAttention.Config(num_heads=4).build()
    bias = jnp.where(jnp.eye(6, dtype=bool), 0.0, -jnp.inf)[None, None]
    got = call(core, {}, q, k, v, info, bias_BNTS=bias)
    seen = info.segment_ids != 0
    np.testing.assert_allclose(got[seen], np.repeat(v, 2, axis=2)[seen], rtol=1e-6)
