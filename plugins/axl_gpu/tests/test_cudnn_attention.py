"""cuDNN attention: the calls that it takes and refuses, and what the wrapper computes.

The kernel itself runs on a GPU only. Everything around it is shown to be right by handing the same
call to `jax.nn`'s portable implementation.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_gpu.cudnn_attention import accepts, attend

from axcore.ops import AttentionInputs, AttentionSpec, Call, KernelPolicy, choose
from axcore.ops.attention_kernels import attention_call
from axcore.ops.attention_reference import attention_reference
from axcore.parallel import make_mesh
from axcore.plugins import Hardware

BATCH, TIME, HEADS, KV_HEADS, WIDTH = 2, 12, 4, 2, 8
SPEC = AttentionSpec(scale=0.25, right=0)


def sized(
    num_queries: int = TIME,
    num_keys: int = TIME,
    width: int = WIDTH,
    value: int = WIDTH,
    dtype=jnp.bfloat16,
    **parts: jax.Array | None,
) -> AttentionInputs:
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = (
        (BATCH, num_queries, HEADS, width),
        (BATCH, num_keys, KV_HEADS, width),
        (BATCH, num_keys, KV_HEADS, value),
    )
    q, k, v = (
        jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True)
    )
    return AttentionInputs(q, k, v)._replace(**parts)


def packed() -> jax.Array:
    """Two documents and padding in the first row, one document in the second."""
    row = jnp.array([1] * 5 + [2] * 4 + [0] * 3, jnp.int32)
    return jnp.stack([row, jnp.ones_like(row)])


def output_and_gradients(run, given: AttentionInputs, spec: AttentionSpec):
    weights = jax.random.normal(jax.random.key(1), given.q_BTNH.shape)

    def loss(q, k, v):
        o = run(given._replace(q_BTNH=q, k_BSKH=k, v_BSKV=v), spec)[0]
        return jnp.sum(o * weights), o

    arrays = (given.q_BTNH, given.k_BSKH, given.v_BSKV)
    gradients, output = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(*arrays)
    return (output, *gradients)


@pytest.mark.parametrize(
    ("spec", "segments"),
    [
        (SPEC, None),
        (SPEC, packed()),
        (AttentionSpec(scale=0.25), packed()),
        (AttentionSpec(scale=0.25, left=3, right=0), packed()),
    ],
)
def test_call_is_handed_on_with_the_meaning_of_the_reference(spec, segments):
    given = sized(dtype=jnp.float32, q_segments_BT=segments, k_segments_BS=segments)
    got = output_and_gradients(lambda *a: attend(*a, implementation="xla"), given, spec)
    expected = output_and_gradients(attention_reference, given, spec)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_devices_of_a_mesh_work_on_their_own_rows_and_heads():
    given = sized(dtype=jnp.float32, q_segments_BT=packed(), k_segments_BS=packed())

    def portable(*call):
        return attend(*call, implementation="xla")

    alone = output_and_gradients(portable, given, SPEC)
    with jax.set_mesh(make_mesh({"fsdp": 2, "model": 2}, jax.devices()[:4])):
        split = output_and_gradients(portable, given, SPEC)
    for one, other in zip(split, alone, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def call(given: AttentionInputs, spec: AttentionSpec = SPEC, *, with_lse: bool = False) -> Call:
    return attention_call(given, spec, with_lse=with_lse)


ROW = jnp.zeros((BATCH, TIME), jnp.int32)
SCALE = {"scale": 1.0}


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (call(sized(dtype=jnp.float32)), "takes bfloat16 and float16, not float32"),
        (call(sized(value=16)), "takes values as wide as keys, not 16 and 8"),
        (
            call(sized(width=12, value=12)),
            "takes widths that are multiples of 8 up to 128, not 12",
        ),
        (
            call(sized(width=136, value=136)),
            "takes widths that are multiples of 8 up to 128, not 136",
        ),
        (call(sized(k_start_BT=ROW, k_end_BT=ROW)), "takes no k_start"),
        (call(sized(bias_BNTS=jnp.zeros((1, 1, TIME, TIME)))), "takes no bias"),
        (call(sized(sinks_N=jnp.zeros(HEADS))), "takes no sinks"),
        (call(sized(dropout_seed=jnp.zeros((), jnp.uint32))), "takes no dropout_seed"),
        (call(sized(), AttentionSpec(**SCALE, soft_cap=3.0)), "takes no soft_cap"),
        (call(sized(), with_lse=True), "gives no gradient of the log-sum-exp"),
        (call(sized(), AttentionSpec(**SCALE, query_offset=3)), "takes no query offset"),
        (call(sized(query_offset_B=ROW[:, 0])), "takes no query offset"),
        (
            call(sized(), AttentionSpec(**SCALE, left=2, right=3)),
            "takes no window to the right, not even one of 3",
        ),
        (
            call(sized(), AttentionSpec(**SCALE, left=2)),
            "takes a window to the left only where attention is causal",
        ),
        (
            call(sized(num_keys=6, q_segments_BT=ROW, k_segments_BS=ROW[:, :6])),
            "takes segments of as many keys as queries, not 6 and 12",
        ),
        (
            call(sized(5, 5, q_segments_BT=ROW[:, :5], k_segments_BS=ROW[:, :5])),
            "takes segments of an even number of tokens, not 5",
        ),
    ],
)
def test_call_that_cudnn_cannot_serve_is_refused_with_the_reason(refused, reason):
    assert accepts(refused) == reason


@pytest.mark.parametrize("target", ["gpu-a100-8", "gpu-a100-40gb-16", "gpu-h100-8", "gpu-b200-64"])
def test_cudnn_is_chosen_on_gpus(target):
    policy = KernelPolicy(hardware=Hardware.parse(target))
    given = sized(q_segments_BT=ROW, k_segments_BS=ROW)
    assert choose(call(given), policy).kernel.name == "cudnn_attention"


def test_cudnn_is_not_chosen_on_a_gpu_that_nobody_describes():
    unknown = Hardware(family="gpu", generation="unknown")
    policy = KernelPolicy(hardware=unknown, allow=("portable",))
    found = choose(call(sized()), policy)
    reasons = {one.kernel.name: one.reason for one in found.candidates}
    assert reasons["cudnn_attention"] == (
        "wants cudnn_attention, which gpu-unknown-1 does not have"
    )


@pytest.mark.parametrize("target", ["cpu-8", "tpu-v5p-8", "trainium-trn2-16"])
def test_cudnn_is_not_chosen_elsewhere(target):
    policy = KernelPolicy(hardware=Hardware.parse(target), allow=("portable",))
    found = choose(call(sized()), policy)
    reasons = {one.kernel.name: one.reason for one in found.candidates}
    assert reasons["cudnn_attention"] == f"wants family gpu, not {target}"
