"""Attention with time split over devices gives what it gives on one, forward and backward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.aot.cost.operations import products
from axcore.aot.hlo.loops import executions
from axcore.aot.hlo.program import parse_program
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
    "causal key ranges": {"causal": True, "key_ranges": tuple(map(jnp.asarray, RANGES))},
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
    _assert_same_numbers(mesh, arrays, CALLS[name], by, use_sinks=name in ("causal", "every key"))


def _assert_same_numbers(mesh, arrays, call, by, *, use_sinks):
    (_, expected), expected_gradients = _run(call, arrays, use_sinks)
    with jax.set_mesh(mesh), sharding_activations(ActivationSharding(mesh, context_parallelism=by)):
        (_, got), gradients = _run(call, arrays, use_sinks)
    for ours, theirs in zip(
        jax.tree.leaves((got, gradients)),
        jax.tree.leaves((expected, expected_gradients)),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["causal", "documents", "causal key ranges"])
@pytest.mark.parametrize("key_heads", [1, HEADS])
@pytest.mark.parametrize(("num_devices", "time"), [(2, 16), (3, 12), (4, 12), (8, 16)])
@pytest.mark.quick_one_in(8)
def test_causal_rings_of_any_size_change_no_number(arrays, num_devices, time, key_heads, name):
    """With even parts they are in zigzag order; those of 12 tokens over 4 devices are not."""
    ring = make_mesh({"seq": num_devices}, jax.devices()[:num_devices])
    keys = (x[:, :time].repeat(HEADS // KEY_HEADS, 2)[:, :, :key_heads] for x in arrays[1:3])
    cut = jax.tree.map(lambda x: x if x is True else x[:, :time], CALLS[name])
    use_sinks = name == "causal"
    _assert_same_numbers(
        ring, (arrays[0][:, :time], *keys, arrays[3]), cut, "ring", use_sinks=use_sinks
    )


def _compiled(mesh, arrays, by, *, with_gradients=False, **call):
    def attend(*qkv):
        return attention(*qkv, **call)

    def gradients(*qkv):
        return jax.grad(lambda qkv: jnp.sum(attend(*qkv)))(qkv)

    with jax.set_mesh(mesh), sharding_activations(ActivationSharding(mesh, context_parallelism=by)):
        split = jax.NamedSharding(mesh, jax.P("data", "seq"))
        placed = tuple(jax.device_put(x, split) for x in arrays[:3])
        run = jax.jit(gradients if with_gradients else attend)
        return run.lower(*placed).compile().as_text()


@pytest.mark.slow
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
    whole = _compiled(mesh, arrays, "ring").count(" collective-permute(")
    short = _compiled(mesh, arrays, "ring", causal=True, window=(2, None))
    assert short.count(" collective-permute(") * 3 == whole


@pytest.mark.slow
def test_a_causal_ring_gives_every_device_the_same_work(mesh, arrays):
    """Each stop but the first computes half of what it does where every key is seen.

    There is no branch by which one device could do less or more than another.
    """
    causal = _compiled(mesh, arrays, "ring", with_gradients=True, causal=True)
    every_key = _compiled(mesh, arrays, "ring", with_gradients=True)
    assert " conditional(" not in causal
    assert _product_flops(causal) == _product_flops(every_key) * (1 + 3 / 2) / 4
    assert " conditional(" in _compiled(mesh, arrays, "ring", causal=True, window=(6, None))


def _product_flops(hlo):
    """The FLOPs of one device's products as `axcore aot` counts them; small parts hide by masks."""
    program = parse_program(hlo)
    return sum(
        product.flops * one.times
        for one in executions(program)
        for product in products(program, one.instruction, one.computation)
    )


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
