"""cuDNN attention: the calls that it takes and refuses, and what is handed to the library.

That everything around the library's calls is right, `test_gpu_conformance.py` shows.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_gpu.kernels.attention.cudnn import unsupported_reason, wide_unsupported_reason
from axl_gpu.kernels.attention.cudnn_packed import (
    MAX_DOCUMENTS,
    cudnn_packed_attention,
    documents_of,
)
from axl_gpu.kernels.attention.cudnn_packed import unsupported_reason as packed_unsupported_reason
from cudnn_simulator import SIMULATED

from axcore.errors import KernelError
from axcore.ops import AttentionInputs, AttentionSpec, Call, KernelPolicy, choose
from axcore.ops.attention.op import ATTENTION_OP
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
    shapes = (
        (BATCH, num_queries, HEADS, width),
        (BATCH, num_keys, KV_HEADS, width),
        (BATCH, num_keys, KV_HEADS, value),
    )
    q, k, v = (np.zeros(shape, dtype) for shape in shapes)
    return jax.tree.map(jnp.asarray, AttentionInputs(q, k, v)._replace(**parts))


def call(given: AttentionInputs, spec: AttentionSpec = SPEC, *, with_lse: bool = False) -> Call:
    return ATTENTION_OP.call(given, spec, lse=with_lse)


ROW = np.zeros((BATCH, TIME), np.int32)
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
        (call(sized(bias_BNTS=np.zeros((1, 1, TIME, TIME)))), "takes no bias"),
        (call(sized(sinks_N=np.zeros(HEADS))), "takes no sinks"),
        (call(sized(dropout_seeds_BN=np.zeros((1, 1), np.uint32))), "takes no dropout_seeds"),
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
    assert unsupported_reason(refused) == reason


WIDE = "takes widths over 128, or values of another width than keys"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (sized(), WIDE),
        (sized(width=264, value=264), "takes widths that are multiples of 8 up to 256, not 264"),
        (sized(width=192, value=132), "takes widths that are multiples of 8 up to 256, not 132"),
        (sized(width=256, value=256, dtype=jnp.float32), "takes bfloat16 and float16, not float32"),
        (sized(width=256, value=256), None),
        (sized(width=192, value=128), None),
    ],
)
def test_widths_that_take_a_hopper_are_served_apart(given, reason):
    assert wide_unsupported_reason(call(given)) == reason
    assert (unsupported_reason(call(given)) is None) == (reason == WIDE)


@pytest.mark.parametrize(
    ("target", "kernel"),
    [("gpu-h100-8", "cudnn_wide_attention"), ("gpu-b200-8", "cudnn_wide_attention")],
)
def test_wide_heads_are_served_from_hopper_on(target, kernel):
    wide = call(sized(width=256, value=256))
    assert choose(wide, KernelPolicy(hardware=Hardware.parse(target))).kernel.name == kernel
    with pytest.raises(KernelError, match="which gpu-a100-8 does not have"):
        choose(wide, KernelPolicy(hardware=Hardware.parse("gpu-a100-8")))


def segments(*runs):
    return np.asarray([[id for id, length in runs for _ in range(length)]], np.int32)


@pytest.mark.slow
def test_documents_are_found_in_the_order_of_the_rows():
    rows = np.concatenate([segments((7, 3), (0, 2), (4, 1)), segments((0, 1), (2, 5))])
    found = documents_of(rows)
    np.testing.assert_array_equal(found.lengths_P.reshape(-1)[:4], [3, 1, 5, 0])
    np.testing.assert_array_equal(found.starts.reshape(-1)[:4], [0, 5, 7, 12])
    assert found.starts.shape == (2, MAX_DOCUMENTS + 1)
    assert np.all(found.is_packed_B)


@pytest.mark.parametrize(
    ("q_segments", "k_segments"),
    [
        (segments((1, 4), (2, 4), (1, 4)), None),
        (segments(*((id, 1) for id in range(1, MAX_DOCUMENTS + 2))), None),
        (segments((1, 6), (2, 6)), segments((1, 5), (2, 7))),
    ],
    ids=["in_two_pieces", "too_many", "other_keys"],
)
def test_rows_that_are_not_packed_as_trusted_give_nan(q_segments, k_segments):
    k_segments = q_segments if k_segments is None else k_segments
    time = q_segments.shape[1]
    q, k, v = (jnp.ones((1, time, 2, 8), jnp.bfloat16) for _ in range(3))
    given = AttentionInputs(q, k, v, q_segments, k_segments)
    attend = jax.jit(lambda given: cudnn_packed_attention(given, SPEC, library=SIMULATED)[0])
    assert np.all(np.isnan(attend(given)))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (sized(), "takes segments, and there are none"),
        (
            sized(q_segments_BT=ROW, k_segments_BS=ROW),
            "takes as many key heads as query heads, not 2 and 4",
        ),
    ],
)
def test_call_that_cannot_be_packed_is_refused_with_the_reason(given, reason):
    assert packed_unsupported_reason(call(given)) == reason


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
