"""NKI attention beyond the suite: what it refuses and poisons, and how far its memory goes."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from axl_trainium.kernels.attention import api as attention
from axl_trainium.kernels.attention import backward as attention_backward
from axl_trainium.kernels.attention.api import nki_flash_attention
from axl_trainium.kernels.attention.items import key_ranges
from axl_trainium.kernels.attention.nki_backward import attention_dkv, attention_dq
from axl_trainium.kernels.attention.nki_forward import attention_forward
from axl_trainium.sdk import IS_SDK, nisa

from axcore.ops import Call
from axcore.ops.attention.contract import ATTENTION_TEST_CASES, AttentionTestCase
from axcore.ops.attention.kernels import attention_reference
from axcore.ops.attention.mask import columns, rows, visible
from axcore.testing import attention_case

SAMPLES = {sample.name: sample for sample in ATTENTION_TEST_CASES}


def call_of(dtype="float32", **sizes):
    return attention_case(AttentionTestCase(name="sized", **sizes)).abstract_call(dtype)


def longest_call(unsupported_reason, width, value_width):
    """Return the most keys, a multiple of 1024, that a predicate takes in bfloat16."""

    def call(keys):
        shapes = {"q": (1, 1, 1, width), "k": (1, keys, 1, width), "v": (1, keys, 1, value_width)}
        return Call(
            op="attention",
            shapes=tuple(shapes.items()),
            dtypes=tuple((name, "bfloat16") for name in shapes),
        )

    return max(keys for keys in range(1024, 2**18, 1024) if unsupported_reason(call(keys)) is None)


@pytest.mark.parametrize(
    "unsupported_reason", [attention.unsupported_reason, attention_backward.unsupported_reason]
)
@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"parts": ("bias",)}, "takes no bias"),
        ({"parts": ("dropout",)}, "takes no dropout_seeds"),
        ({"width": 520}, "takes widths of keys to 512, not 520"),
        ({"value_width": 520}, "takes widths of values to 512, not 520"),
        ({"dtype": "float16"}, "takes bfloat16 and float32, not float16"),
        ({"queries": 0}, "takes one row, key, head and column or more"),
        (
            {"keys": 90000, "heads": 1, "key_heads": 1, "batch": 1, "width": 8, "value_width": 8},
            "takes keys and values that need up to 163840 bytes of a partition of SBUF, not ",
        ),
    ],
)
def test_what_the_kernels_cannot_do_is_refused_with_the_reason(unsupported_reason, sizes, reason):
    reply = unsupported_reason(call_of(**sizes))
    assert reply is not None
    assert re.match(reason, reply), reply


@pytest.mark.parametrize(
    "name", ["plain", "window", "segments", "lonely_segments", "ranges", "offset", "more_queries"]
)
@pytest.mark.quick_one_in(3)
def test_ranges_hide_what_the_masks_hide(name):
    inputs, spec = SAMPLES[name].make()
    found = key_ranges(inputs, spec)
    place = np.arange(inputs.k_BSKH.shape[1])[None, None, :]
    start, end = (np.asarray(bound)[:, :, None] for bound in (found.start_BT, found.end_BT))
    sees = (place >= start) & (place < end)
    mask = visible(spec, rows(inputs, spec), columns(inputs))
    expected = True if mask is None else mask[:, 0, 0]
    np.testing.assert_array_equal(sees, np.broadcast_to(expected, sees.shape))
    assert found.is_exact_BT is None or found.is_exact_BT.all()


@pytest.mark.usefixtures("runs_nki")
@pytest.mark.slow
def test_only_queries_of_a_document_in_two_pieces_give_nan():
    inputs, spec = AttentionTestCase(name="pieces", batch=1, queries=6, keys=6).make()
    segments = jnp.asarray([[1, 2, 2, 1, 3, 0]])
    inputs = inputs._replace(q_segments_BT=segments, k_segments_BS=segments)
    o, lse = nki_flash_attention(inputs, spec)
    expected, expected_lse = attention_reference(inputs, spec)
    in_pieces = np.asarray([True, False, False, True, False, False])
    assert np.isnan(o[:, in_pieces]).all()
    assert np.isnan(lse[:, in_pieces]).all()
    np.testing.assert_allclose(o[:, ~in_pieces], expected[:, ~in_pieces], atol=1e-6)
    np.testing.assert_allclose(lse[:, ~in_pieces], expected_lse[:, ~in_pieces], atol=1e-6)


@pytest.mark.usefixtures("runs_nki")
@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_a_query_that_is_not_finite_spoils_no_other(number):
    inputs, spec = SAMPLES["causal"].make()
    spoilt = inputs._replace(q_BTNH=inputs.q_BTNH.at[0, 3, 1].set(number))
    o, _ = nki_flash_attention(spoilt, spec)
    clean, _ = nki_flash_attention(inputs, spec)
    assert np.isnan(o[0, 3, 1]).all()
    np.testing.assert_array_equal(o.at[0, 3, 1].set(clean[0, 3, 1]), clean)


@pytest.mark.skipif(IS_SDK, reason="AWS's Neuron SDK is installed: only the simulator takes numpy")
@pytest.mark.parametrize(
    ("unsupported_reason", "width", "value_width"),
    [(attention.unsupported_reason, 128, 128), (attention_backward.unsupported_reason, 16, 512)],
)
def test_the_longest_rows_that_are_accepted_fit_the_memory(unsupported_reason, width, value_width):
    longest = longest_call(unsupported_reason, width, value_width)
    array = lambda *shape, dtype=jnp.bfloat16: np.ones(shape, dtype)  # noqa: E731
    q, k, v = array(1, 1, width), array(1, longest, width), array(1, longest, value_width)
    start, end = (np.full((1, 1, 1), place, np.float32) for place in (longest - 5, longest))
    choices = {"scale": 1.0, "soft_cap": 2.0, "left": 600, "right": 0, "offset": longest - 1}
    if unsupported_reason is attention.unsupported_reason:
        o, _ = attention_forward(q, k, v, start, end, start_XR2=None, **choices)
        assert (o == 1).all()
    else:
        rows = (array(1, 1, value_width), *(np.zeros((1, 1, 1), np.float32),) * 2)
        assert np.isfinite(attention_dq(q, k, v, start, end, *rows, **choices).astype(float)).all()


@pytest.mark.skipif(IS_SDK, reason="AWS's Neuron SDK is installed: only the simulator is counted")
@pytest.mark.parametrize(
    ("spec", "share"), [({"right": 0}, 0.65), ({"right": 0, "left": 128}, 0.4), ({"left": 0}, 0.65)]
)
@pytest.mark.parametrize("kernel", [attention_forward, attention_dq, attention_dkv])
def test_tiles_that_no_query_sees_are_not_computed(monkeypatch, kernel, spec, share):
    products = []

    def counted(original=nisa.nc_matmul, **operands):
        products.append(operands["moving"].shape)
        original(**operands)

    monkeypatch.setattr(nisa, "nc_matmul", counted)

    def work(choices):
        products.clear()
        rows, column = np.ones((1, 1024, 8), np.float32), np.zeros((1, 1024, 1), np.float32)
        more = {"start_XR2": None} if kernel is attention_forward else {}
        arrays = (rows, column, column) if kernel is not attention_forward else ()
        kernel(
            *(rows, rows, rows, column, column + 1024, *arrays),
            **more,
            **(
                {"scale": 1.0, "soft_cap": None, "left": None, "right": None, "offset": 0} | choices
            ),
        )
        return sum(columns for _, columns in products)

    assert 0 < work(spec) < share * work({})
