"""Splash attention, interpreted: equal to the op's reference, and exact in what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_tpu.kernels.attention.splash import (
    BLOCK_SIZES,
    SplashBlockSizes,
    splash_attention,
    unsupported_reason,
)

from axcore.ops import AttentionInputs, AttentionSpec, Call, KernelPolicy, choose
from axcore.ops.attention.kernels import attention_reference
from axcore.ops.attention.op import ATTENTION_OP
from axcore.parallel import make_mesh
from axcore.plugins import Hardware

BATCH, TIME, HEADS, KV_HEADS, WIDTH = 2, 256, 4, 2, 16
SPEC = AttentionSpec(scale=0.25, right=0)


def inputs(**parts: jax.Array | None) -> AttentionInputs:
    numbers = np.random.default_rng(0)
    q, k, v = (
        jnp.asarray(numbers.standard_normal((BATCH, TIME, heads, WIDTH), np.float32))
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    return AttentionInputs(q, k, v)._replace(**parts)


def packed() -> jax.Array:
    """Two documents and padding in the first row, one document in the second."""
    row = np.repeat(np.array([1, 2, 0], np.int32), [100, 120, 36])
    return jnp.asarray(np.stack([row, np.ones_like(row)]))


def output_and_gradients(run, given: AttentionInputs, spec: AttentionSpec):
    weights = jax.random.normal(jax.random.key(1), given.q_BTNH.shape)

    def loss(q, k, v):
        o = run(given._replace(q_BTNH=q, k_BSKH=k, v_BSKV=v), spec)[0]
        return jnp.sum(o * weights), o

    arrays = (given.q_BTNH, given.k_BSKH, given.v_BSKV)
    gradients, output = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(*arrays)
    return (output, *gradients)


def interpreted(given, spec):
    return splash_attention(given, spec, interpret=True)


@pytest.mark.parametrize(
    ("spec", "segments"),
    [
        (SPEC, None),
        (SPEC, packed()),
        (AttentionSpec(scale=0.25), packed()),
        (AttentionSpec(scale=0.25, left=30, right=0, soft_cap=2.0), packed()),
        (AttentionSpec(scale=0.25, left=40, right=7), None),
    ],
)
@pytest.mark.quick_one_in(10)
def test_splash_equals_the_reference_forward_and_backward(spec, segments):
    given = inputs(q_segments_BT=segments, k_segments_BS=segments)
    got = output_and_gradients(interpreted, given, spec)
    expected = output_and_gradients(attention_reference, given, spec)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


@pytest.mark.slow
def test_a_fused_backward_pass_gives_the_same_gradients():
    given = inputs(q_segments_BT=packed(), k_segments_BS=packed())
    with BLOCK_SIZES.forced(SplashBlockSizes(128)):
        in_two_kernels = output_and_gradients(interpreted, given, SPEC)
    with BLOCK_SIZES.forced(SplashBlockSizes(128, fused_backward=True)):
        fused = output_and_gradients(interpreted, given, SPEC)
    for one, other in zip(fused, in_two_kernels, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_query_that_no_segment_serves_gives_zeros_without_gradient():
    ours, theirs = packed(), jnp.where(packed() == 2, 3, packed())
    given = inputs(q_segments_BT=ours, k_segments_BS=theirs)
    output, _, gradient_k, gradient_v = output_and_gradients(interpreted, given, SPEC)
    assert not np.any(output[0, 100:])
    assert not np.any(gradient_k[0, 100:])
    assert not np.any(gradient_v[0, 100:])
    assert np.all(np.isfinite(gradient_k))


@pytest.mark.slow
def test_devices_of_a_mesh_work_on_their_own_rows_and_heads():
    given = inputs(q_segments_BT=packed(), k_segments_BS=packed())
    alone = output_and_gradients(interpreted, given, SPEC)
    mesh = make_mesh({"fsdp": 2, "model": 2}, jax.devices()[:4])
    with jax.set_mesh(mesh):
        split = output_and_gradients(interpreted, given, SPEC)
    for one, other in zip(split, alone, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_rows_that_do_not_divide_over_the_mesh_stay_whole():
    given = inputs()
    alone = interpreted(given, SPEC)[0]
    with jax.set_mesh(make_mesh({"fsdp": 8}, jax.devices()[:8])):
        split = jax.jit(lambda: interpreted(given, SPEC)[0])()
    np.testing.assert_allclose(split, alone, rtol=1e-5, atol=1e-6)


def call(given: AttentionInputs, spec: AttentionSpec = SPEC, *, with_lse: bool = False) -> Call:
    return ATTENTION_OP.call(given, spec, lse=with_lse)


def sized(num_queries: int = TIME, num_keys: int = TIME, width: int = WIDTH, value: int = WIDTH):
    return AttentionInputs(
        q_BTNH=jnp.zeros((BATCH, num_queries, HEADS, width)),
        k_BSKH=jnp.zeros((BATCH, num_keys, KV_HEADS, width)),
        v_BSKV=jnp.zeros((BATCH, num_keys, KV_HEADS, value)),
    )


ROW = jnp.zeros((BATCH, TIME), jnp.int32)


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (call(sized(num_keys=128)), "takes as many keys as queries, not 256 queries and 128 keys"),
        (call(sized(200, 200)), "takes multiples of 128 tokens, not 200"),
        (call(sized(width=12)), "takes widths of k that are multiples of 8 up to 256, not 12"),
        (call(sized(value=264)), "takes widths of v that are multiples of 8 up to 256, not 264"),
        (call(sized(), AttentionSpec(scale=1.0, query_offset=3)), "takes no query offset"),
        (call(inputs(query_offset_B=ROW[:, 0])), "takes no query offset"),
        (call(inputs(k_start_BT=ROW, k_end_BT=ROW)), "takes no k_start"),
        (call(inputs(bias_BNTS=jnp.zeros((1, 1, TIME, TIME)))), "takes no bias"),
        (call(inputs(sinks_N=jnp.zeros(HEADS))), "takes no sinks"),
        (call(inputs(dropout_seeds_BN=jnp.zeros((1, 1), jnp.uint32))), "takes no dropout_seeds"),
        (call(inputs(), with_lse=True), "gives no log-sum-exp"),
    ],
)
def test_call_that_splash_cannot_serve_is_refused_with_the_reason(refused, reason):
    assert unsupported_reason(refused) == reason


def test_call_of_a_dtype_that_splash_lacks_is_refused():
    halves = jax.tree.map(lambda x: x.astype(jnp.float16), sized())
    assert unsupported_reason(call(halves)) == "takes bfloat16 and float32, not float16"


@pytest.mark.parametrize("target", ["tpu-v5p-512", "tpu-v4-8"])
@pytest.mark.parametrize("pins", [{}, {"attention": "splash_attention"}], ids=["default", "pin"])
def test_splash_serves_on_tpus_by_default_and_where_it_is_pinned(target, pins):
    policy = KernelPolicy(hardware=Hardware.parse(target), pins=pins)
    packed_call = call(inputs(q_segments_BT=ROW, k_segments_BS=ROW))
    assert choose(packed_call, policy).kernel.name == "splash_attention"


@pytest.mark.parametrize("target", ["cpu-8", "gpu-h100-8", "trainium-trn2-16"])
def test_splash_is_not_chosen_elsewhere(target):
    policy = KernelPolicy(hardware=Hardware.parse(target), allow=("blockwise", "portable", "dense"))
    found = choose(call(inputs()), policy)
    reasons = {one.kernel.name: one.reason for one in found.candidates}
    assert reasons["splash_attention"] == f"wants family tpu, not {target}"
