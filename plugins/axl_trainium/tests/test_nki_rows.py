"""NKI cross-entropy and RMS normalisation beyond the suite: refusals, memory, numbers' ends."""

import re
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from axl_trainium.kernels.cross_entropy import api as cross_entropy
from axl_trainium.kernels.cross_entropy.api import (
    nki_cross_entropy,
    nki_cross_entropy_backward,
    tiles_for,
)
from axl_trainium.kernels.cross_entropy.nki_backward import cross_entropy_dw, cross_entropy_dx
from axl_trainium.kernels.rms_norm import api as rms_norm
from axl_trainium.kernels.rms_norm.nki_kernels import rms_norm_backward
from axl_trainium.sdk import IS_SDK

from axcore.ops import Call
from axcore.ops.cross_entropy.contract import CrossEntropyTestCase
from axcore.ops.cross_entropy.op import cross_entropy_custom_vjp

on_numpy = pytest.mark.skipif(
    IS_SDK, reason="AWS's Neuron SDK is installed: only the simulator takes numpy"
)


def norm_call(*shape, dtype="bfloat16"):
    return Call(op="rms_norm", shapes=(("x", shape),), dtypes=(("x", dtype),))


def loss_call(width, vocabulary=64, tokens=8, dtype="bfloat16"):
    return Call(
        op="cross_entropy",
        shapes=(("x", (1, tokens, width)), ("w", (width, vocabulary))),
        dtypes=(("x", dtype), ("w", dtype)),
        features=(("vocabulary_first", False),),
    )


@pytest.mark.parametrize(
    ("unsupported_reason", "call", "reason"),
    [
        (
            rms_norm.unsupported_reason,
            norm_call(4, 10**4),
            r"takes widths to 8935 in bfloat16, not 10000",
        ),
        (rms_norm.unsupported_reason, norm_call(0, 4), r"takes one element or more, not \(0, 4\)"),
        (
            rms_norm.unsupported_reason,
            norm_call(4, 4, dtype="float16"),
            "takes bfloat16 and float32, not f",
        ),
        (
            cross_entropy.unsupported_reason,
            loss_call(30000),
            "takes widths whose gradients fit SBUF, not 3",
        ),
        (
            cross_entropy.unsupported_reason,
            loss_call(8, vocabulary=2**25),
            "takes vocabularies up to 16777216",
        ),
        (
            cross_entropy.unsupported_reason,
            loss_call(8, tokens=0),
            "takes one token, column and word or more",
        ),
        (
            cross_entropy.unsupported_reason,
            loss_call(8, dtype="float16"),
            "takes bfloat16 and float32, not f",
        ),
    ],
)
def test_what_the_kernels_cannot_do_is_refused_with_the_reason(unsupported_reason, call, reason):
    assert re.match(reason, unsupported_reason(call)), unsupported_reason(call)


loss_of = partial(
    cross_entropy_custom_vjp, forward=nki_cross_entropy, backward=nki_cross_entropy_backward
)


def widest(width_unsupported_reason):
    return max(width for width in range(64, 2**14, 64) if width_unsupported_reason(width) is None)


@on_numpy
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_the_widest_rows_that_rms_norm_accepts_fit_the_memory(dtype):
    name = jnp.dtype(dtype).name
    width = widest(lambda width: rms_norm.unsupported_reason(norm_call(4, width, dtype=name)))
    x, scale = np.ones((1, 2, width), dtype), np.ones((1, width), np.float32)
    dx, dscale = rms_norm_backward(x, scale, x, epsilon=1e-6)
    np.testing.assert_allclose(dx.astype(float), 0, atol=1e-6)
    np.testing.assert_allclose(dscale, 2, rtol=1e-5)


@on_numpy
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("width", [None, 100])
def test_the_blocks_of_cross_entropy_fit_the_memory(width, dtype):
    name = jnp.dtype(dtype).name
    if width is None:
        width = widest(lambda width: cross_entropy.unsupported_reason(loss_call(width, dtype=name)))
    tiles = tiles_for(width, name)
    vocabulary = tiles.columns + 8
    choices = {"soft_cap": 2.0, "block": tiles.columns}
    for kernel, rows in ((cross_entropy_dx, tiles.tokens), (cross_entropy_dw, 128)):
        x, w = np.zeros((1, rows, width), dtype), np.zeros((width, vocabulary), dtype)
        token = np.stack([np.full((1, rows), number, np.float32) for number in (0, 1, -1)], -1)
        transposed = (np.ascontiguousarray(w.T),) if kernel is cross_entropy_dx else ()
        gradient = kernel(x, w, *transposed, np.zeros((1, rows, 1), np.float32), token, **choices)
        assert (gradient == 0).all()


def test_wide_models_read_the_projection_for_fewer_tokens_at_once():
    sizes = [tiles_for(width, "bfloat16") for width in (1024, 4096, 8192)]
    assert [(one.tokens, one.columns) for one in sizes] == [(1024, 512), (512, 512), (256, 128)]


@pytest.mark.usefixtures("runs_nki")
@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_a_logit_that_is_not_finite_never_gives_a_plausible_loss(number):
    inputs, spec = CrossEntropyTestCase(name="spoilt", leading=(1, 4)).make()
    w = inputs.w.at[0, 7].set(number)
    sums = loss_of(inputs._replace(w=w, weights_BT=jnp.ones((1, 4))), spec)
    assert not np.isfinite(sums.loss)


@pytest.mark.usefixtures("runs_nki")
def test_tokens_without_weight_may_have_any_hidden_state():
    inputs, spec = CrossEntropyTestCase(name="padded", leading=(1, 4)).make()
    weights = jnp.asarray([[1.0, 1.0, 0.0, 0.0]])
    sums = loss_of(inputs._replace(weights_BT=weights), spec)
    other = inputs._replace(x_BTD=inputs.x_BTD.at[0, 2:].set(1e4), weights_BT=weights)
    assert loss_of(other, spec).loss == sums.loss
