"""Ops keep their meaning under vmap, scan and remat, and stay sharded under a mesh."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from axcore.ops import ATTENTION_LSE, ATTENTION_OUT, attention, cross_entropy
from axcore.ops.attention.blockwise import blockwise_backward, blockwise_forward
from axcore.ops.attention.kernels import attention_dense
from axcore.ops.attention.op import AttentionInputs, AttentionSpec, attention_custom_vjp
from axcore.ops.contract import relative_error

blockwise = partial(
    attention_custom_vjp,
    forward=partial(blockwise_forward, block_size=16),
    backward=partial(blockwise_backward, block_size=16),
)
SPEC = AttentionSpec(scale=0.3, right=0)
NUMBERS = np.random.default_rng(0)
Q, K, V = (
    jnp.asarray(NUMBERS.standard_normal(shape, np.float32))
    for shape in [(4, 40, 4, 8), (4, 40, 2, 8), (4, 40, 2, 8)]
)
ATTENDS = {"dense": attention_dense, "blockwise": blockwise}
COLLECTIVE = re.compile(r"(all-gather|all-to-all|collective-permute|all-reduce|reduce-scatter)\(")


def loss_and_gradients(attend, q, k, v):
    def loss(q, k, v):
        return jnp.sum(jnp.sin(attend(AttentionInputs(q, k, v), SPEC)[0]))

    return jax.value_and_grad(loss, argnums=(0, 1, 2))(q, k, v)


def assert_equal(got, want):
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert relative_error(x, y) <= 1e-5


@pytest.mark.parametrize("name", ATTENDS)
def test_vmap_equals_a_loop(name):
    step = partial(loss_and_gradients, ATTENDS[name])
    stacked = [x.reshape(2, 2, *x.shape[1:]) for x in (Q, K, V)]
    got = jax.jit(jax.vmap(step))(*stacked)
    for i in range(2):
        want = jax.jit(step)(*(x[i] for x in stacked))
        assert_equal(jax.tree.map(lambda x: x[i], got), want)  # noqa: B023


@pytest.mark.parametrize("name", ATTENDS)
@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.quick_one_in(8)
def test_scan_over_layers_equals_unrolled_layers(name, remat):
    def layer(q, scale):
        return q + ATTENDS[name](AttentionInputs(scale * q, K, V), SPEC)[0]

    layer = jax.checkpoint(layer) if remat else layer
    scales = jnp.asarray([0.5, 1.0, 2.0])

    def scanned(q, scales):
        return jnp.sum(jax.lax.scan(lambda q, s: (layer(q, s), None), q, scales)[0])

    def unrolled(q, scales):
        for i in range(3):
            q = layer(q, scales[i])
        return jnp.sum(q)

    got, want = (
        jax.jit(jax.value_and_grad(f, argnums=(0, 1)))(Q, scales) for f in (scanned, unrolled)
    )
    assert_equal(got, want)


def num_loops(policy):
    """Return how many block loops the gradient runs under a remat policy."""

    @partial(jax.checkpoint, policy=policy)
    def loss(q):
        return jnp.sum(jnp.sin(blockwise(AttentionInputs(q, K, V), SPEC)[0]))

    return str(jax.make_jaxpr(jax.grad(loss))(Q)).count("scan[")


def test_saving_named_residuals_spares_the_second_forward_pass():
    policies = jax.checkpoint_policies
    assert num_loops(policies.nothing_saveable) == 3
    assert num_loops(policies.save_only_these_names(ATTENTION_OUT)) == 3
    assert num_loops(policies.save_only_these_names(ATTENTION_OUT, ATTENTION_LSE)) == 2


def mesh_of(sizes, names):
    devices = np.asarray(jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
    return jax.sharding.Mesh(devices, names)


@pytest.mark.parametrize("name", ATTENDS)
def test_attention_sharded_by_batch_and_heads_needs_no_communication(name):
    mesh = mesh_of((2, 2), ("data", "model"))
    sharding = NamedSharding(mesh, PartitionSpec("data", None, "model"))

    @partial(jax.jit, in_shardings=sharding, out_shardings=sharding)
    def step(q, k, v):
        o, gradients = jax.vjp(lambda *x: ATTENDS[name](AttentionInputs(*x), SPEC)[0], q, k, v)
        return o, *gradients(jnp.cos(o))

    assert not COLLECTIVE.findall(step.lower(Q, K, V).compile().as_text())
    alone = jax.jit(step.__wrapped__)(Q, K, V)
    assert_equal(step(Q, K, V), alone)


def test_attention_under_a_mesh_equals_attention_alone_with_every_mask():
    mesh = mesh_of((4,), ("data",))
    segments = jnp.asarray(NUMBERS.integers(0, 3, (4, 40)).astype(np.int32))

    def loss(q, k, v):
        return jnp.sum(jnp.sin(attention(q, k, v, causal=True, segment_ids=segments)))

    sharding = NamedSharding(mesh, PartitionSpec("data"))
    step = jax.value_and_grad(loss, argnums=(0, 1, 2))
    sharded = jax.jit(step)(*(jax.device_put(x, sharding) for x in (Q, K, V)))
    assert_equal(sharded, jax.jit(step)(Q, K, V))


@pytest.mark.slow
def test_documents_split_by_batch_are_passed_over_alike():
    mesh = mesh_of((4,), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    segments = jnp.sort(jnp.asarray(NUMBERS.integers(0, 4, (4, 40)).astype(np.int32)))

    def step(q, k, v, segments):
        def loss(q, k, v):
            inputs = AttentionInputs(q, k, v, segments, segments)
            return jnp.sum(jnp.sin(blockwise(inputs, SPEC)[0]))

        return jax.value_and_grad(loss, argnums=(0, 1, 2))(q, k, v)

    arguments = (Q, K, V, segments)
    split = jax.jit(step, in_shardings=sharding)(*jax.device_put(arguments, sharding))
    assert_equal(split, jax.jit(step)(*arguments))


def cross_entropy_step(x, w, targets, weights):
    def loss(x, w):
        total, weight = cross_entropy(x, w, targets, weights)
        return total / weight

    return jax.value_and_grad(loss, argnums=(0, 1))(x, w)


def cross_entropy_arguments(vocabulary):
    return (
        jnp.asarray(NUMBERS.standard_normal((4, 24, 8), np.float32)),
        jnp.asarray(NUMBERS.standard_normal((8, vocabulary), np.float32)),
        jnp.asarray(NUMBERS.integers(0, vocabulary, (4, 24)).astype(np.int32)),
        jnp.asarray(NUMBERS.random((4, 24), np.float32)),
    )


@pytest.mark.parametrize(
    ("rows", "vocabulary"), [("data", None), ("data", "model"), (("data", "model"), None)]
)
def test_sharded_cross_entropy_gathers_neither_tokens_nor_logits(rows, vocabulary):
    mesh = mesh_of((2, 2), ("data", "model"))
    by_row = NamedSharding(mesh, PartitionSpec(rows))
    by_vocabulary = NamedSharding(mesh, PartitionSpec(None, vocabulary))
    arguments = cross_entropy_arguments(vocabulary=64)
    step = jax.jit(cross_entropy_step, in_shardings=(by_row, by_vocabulary, by_row, by_row))
    text = step.lower(*arguments).compile().as_text()
    assert "all-gather(" not in text
    assert "all-to-all(" not in text
    assert_equal(step(*arguments), jax.jit(cross_entropy_step)(*arguments))


@pytest.mark.slow
def test_cross_entropy_under_vmap_and_scan_equals_a_loop():
    x, w, targets, weights = cross_entropy_arguments(vocabulary=32)
    rows = [a[:, None] for a in (x, targets, weights)]

    def one(x, targets, weights):
        return cross_entropy_step(x, w, targets, weights)

    mapped = jax.jit(jax.vmap(one))(*rows)
    scanned = jax.jit(lambda *r: jax.lax.scan(lambda c, a: (c, one(*a)), None, r)[1])(*rows)
    looped = [jax.jit(one)(*(a[i] for a in rows)) for i in range(4)]
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *looped)
    assert_equal(mapped, stacked)
    assert_equal(scanned, stacked)
