"""Attention with time split over devices gives what it gives on one, forward and backward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.errors import ShardingError
from axcore.ops import attention
from axcore.parallel import ActivationSharding, make_mesh, sharding_activations

BATCH, TIME, HEADS, KEY_HEADS, WIDTH = 2, 16, 8, 4, 8


@pytest.fixture(scope="module")
def mesh():
    return make_mesh({"data": 2, "seq": 4}, jax.devices()[:8])


def _normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32))


@pytest.fixture(scope="module")
def arrays():
    """Queries, keys, values, and one sink a head."""
    return (
        _normal(0, BATCH, TIME, HEADS, WIDTH),
        _normal(1, BATCH, TIME, KEY_HEADS, WIDTH),
        _normal(2, BATCH, TIME, KEY_HEADS, WIDTH),
        _normal(3, HEADS),
    )


SEGMENTS = np.repeat(np.array([1, 2, 3, 0], np.int32), (3, 6, 5, 2))[None].repeat(BATCH, 0)
PLACES = np.arange(TIME, dtype=np.int32)[None].repeat(BATCH, 0)
RANGES = (np.maximum(PLACES - 5, 0), np.where(PLACES % 5 == 4, 0, PLACES + 1).astype(np.int32))

CALLS = {
    "every key": {},
    "causal": {"causal": True},
    "short window": {"causal": True, "window": (2, None)},
    "window of both sides": {"window": (6, 5)},
    "documents": {"causal": True, "segment_ids": jnp.asarray(SEGMENTS)},
    "key ranges": {"key_ranges": tuple(map(jnp.asarray, RANGES))},
    "soft cap": {"causal": True, "soft_cap": 2.0},
}


def _run(call, arrays, use_sinks):
    def total(arrays):
        *qkv, sinks = arrays
        o, lse = attention(*qkv, sinks_N=sinks if use_sinks else None, return_lse=True, **call)
        seen = jnp.where(jnp.isneginf(lse), 0.0, lse)
        return jnp.sum(jnp.sin(o)) + jnp.sum(jnp.cos(seen)), (o, lse)

    return jax.jit(jax.value_and_grad(total, has_aux=True))(arrays)


@pytest.mark.parametrize("by", ["all_gather", "ring", "ulysses"])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.quick_one_in(8)
def test_split_time_changes_no_number(mesh, arrays, name, by):
    use_sinks = name in ("causal", "every key")
    (_, expected), expected_gradients = _run(CALLS[name], arrays, use_sinks)
    with jax.set_mesh(mesh), sharding_activations(ActivationSharding(mesh, context_parallelism=by)):
        (_, got), gradients = _run(CALLS[name], arrays, use_sinks)
    for ours, theirs in zip(
        jax.tree.leaves((got, gradients)),
        jax.tree.leaves((expected, expected_gradients)),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


def _compiled(mesh, arrays, by, **call):
    with jax.set_mesh(mesh), sharding_activations(ActivationSharding(mesh, context_parallelism=by)):
        split = jax.NamedSharding(mesh, jax.P("data", "seq"))
        placed = tuple(jax.device_put(x, split) for x in arrays[:3])
        return jax.jit(lambda *qkv: attention(*qkv, **call)).lower(*placed).compile().as_text()


def test_each_way_moves_what_it_says(mesh, arrays):
    gathered = _compiled(mesh, arrays, "all_gather", causal=True)
    ring = _compiled(mesh, arrays, "ring", causal=True)
    by_heads = _compiled(mesh, arrays, "ulysses", causal=True)
    assert "all-gather(" in gathered
    assert "all-to-all(" not in gathered
    assert "collective-permute(" in ring
    assert "all-gather(" not in ring
    assert "all-to-all(" in by_heads
    assert "all-gather(" not in by_heads


def test_a_ring_stops_where_the_window_ends(mesh, arrays):
    """A window of 2 reaches one device back, so keys and values move once, not three times."""
    whole = _compiled(mesh, arrays, "ring", causal=True).count(" collective-permute(")
    short = _compiled(mesh, arrays, "ring", causal=True, window=(2, None))
    assert short.count(" collective-permute(") * 3 == whole


@pytest.mark.slow
def test_a_bias_is_split_with_its_queries(mesh, arrays):
    bias = _normal(4, 1, HEADS, TIME, TIME)
    expected = attention(*arrays[:3], bias_BNTS=bias)
    for by in ("all_gather", "ulysses"):
        with (
            jax.set_mesh(mesh),
            sharding_activations(ActivationSharding(mesh, context_parallelism=by)),
        ):
            got = jax.jit(lambda *x: attention(*x[:3], bias_BNTS=x[3]))(*arrays[:3], bias)
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
def test_more_keys_than_queries_are_gathered(mesh, arrays):
    q, k, v = arrays[0][:, 8:], arrays[1], arrays[2]
    expected = attention(q, k, v, causal=True, query_offset=8)
    with jax.set_mesh(mesh), sharding_activations(ActivationSharding(mesh)):
        got = jax.jit(lambda *x: attention(*x, causal=True, query_offset=8))(q, k, v)
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("by", "call", "text"),
    [
        (
            "ring",
            {"query_offset": 4},
            r"an offset of the queries[\s\S]*context_parallelism=all_gather",
        ),
        ("ring", {"bias_BNTS": jnp.zeros((1, 1, 1, TIME))}, "attention with a bias"),
    ],
)
def test_what_a_ring_cannot_do_is_refused(mesh, arrays, by, call, text):
    with (
        jax.set_mesh(mesh),
        sharding_activations(ActivationSharding(mesh, context_parallelism=by)),
        pytest.raises(ShardingError, match=text),
    ):
        attention(*arrays[:3], **call)


def test_heads_that_do_not_divide_are_refused(mesh, arrays):
    q, k, v = arrays[0], arrays[1][:, :, :2], arrays[2][:, :, :2]
    with (
        jax.set_mesh(mesh),
        sharding_activations(ActivationSharding(mesh, context_parallelism="ulysses")),
        pytest.raises(ShardingError, match=r"2 key heads cannot be split by heads over seq 4"),
    ):
        attention(q, k, v)
