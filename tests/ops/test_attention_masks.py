"""Rows that see nothing, infinite biases and random masks: defined results, never NaN."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from axcore.ops import attention
from axcore.ops.attention.blockwise import blockwise_backward, blockwise_forward
from axcore.ops.attention.kernels import attention_dense, attention_reference
from axcore.ops.attention.op import AttentionInputs, AttentionSpec, attention_custom_vjp
from axcore.ops.contract import relative_error

LENGTH = 20
IMPLEMENTATIONS = {
    "reference": attention_reference,
    "dense": attention_dense,
    "blockwise": partial(
        attention_custom_vjp,
        forward=partial(blockwise_forward, block_size=16),
        backward=partial(blockwise_backward, block_size=16),
    ),
}
NUMBERS = np.random.default_rng(0)
Q, K, V, BIAS = (
    jnp.asarray(NUMBERS.standard_normal(shape, np.float32))
    for shape in [(1, LENGTH, 2, 8), (1, LENGTH, 1, 8), (1, LENGTH, 1, 8), (1, 2, LENGTH, LENGTH)]
)
SPECS = (
    AttentionSpec(scale=1.0),
    AttentionSpec(scale=1.0, right=0, soft_cap=2.0),
    AttentionSpec(scale=1.0, left=3, right=1, query_offset=-2),
)


@partial(jax.jit, static_argnums=(0, 1))
def run(name, spec, masks):
    """Return output, log-sum-exp, and gradients of q, k, v, bias."""
    bias, segments, start, end = masks

    def loss(q, k, v, bias):
        inputs = AttentionInputs(q, k, v, segments, segments, start, end, bias_BNTS=bias)
        o, lse = IMPLEMENTATIONS[name](inputs, spec)
        return jnp.sum(jnp.sin(o)), (o, lse)

    (_, outputs), gradients = jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(
        Q, K, V, bias
    )
    return outputs, gradients


@st.composite
def masks(draw):
    """Draw segments with padding, ranges that may be empty, and a bias with -inf in it."""
    numbers = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    segments = numbers.integers(0, draw(st.integers(1, 4)), (1, LENGTH))
    start = numbers.integers(0, LENGTH, (1, LENGTH))
    end = start + numbers.integers(0, draw(st.sampled_from([1, 4, LENGTH])), (1, LENGTH))
    hidden = numbers.random(BIAS.shape) < draw(st.sampled_from([0.0, 0.5, 0.95, 1.0]))
    huge = draw(st.sampled_from([1.0, 1e4, 1e30]))
    bias = jnp.where(hidden, -jnp.inf, jnp.float32(huge) * BIAS)
    return bias, *(jnp.asarray(x, jnp.int32) for x in (segments, start, end))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(masks=masks(), spec=st.sampled_from(SPECS))
@pytest.mark.slow
def test_random_masks_agree_with_the_reference_and_never_give_nan(masks, spec):
    outputs, gradients = run("reference", spec, masks)
    assert not any(jnp.isnan(x).any() for x in jax.tree.leaves((outputs, gradients)))
    for name in ("dense", "blockwise"):
        got_outputs, got_gradients = run(name, spec, masks)
        assert relative_error(got_outputs[0], outputs[0]) <= 1e-5
        assert relative_error(got_outputs[1], outputs[1]) <= 1e-5
        for got, want in zip(got_gradients, gradients, strict=True):
            assert relative_error(got, want) <= 3e-5


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.quick_one_in(3)
def test_row_that_sees_nothing_gives_zero_and_zero_gradients(name):
    segments = jnp.zeros((1, LENGTH), jnp.int32).at[:, :7].set(1)
    everything = jnp.full((1, LENGTH), LENGTH, jnp.int32)
    outputs, gradients = run(
        name, SPECS[0], (BIAS, segments, jnp.zeros_like(everything), everything)
    )
    o, lse = outputs
    assert not o[:, 7:].any()
    assert jnp.isneginf(lse[:, 7:]).all()
    for gradient in gradients[:3]:
        assert not gradient[:, 7:].any()
        assert gradient[:, :7].any()


def test_nobody_sees_anything_gives_zeros():
    nothing = jnp.zeros((1, LENGTH), jnp.int32)
    for name in IMPLEMENTATIONS:
        outputs, gradients = run(name, SPECS[0], (BIAS, nothing, nothing, nothing))
        assert not outputs[0].any()
        assert not any(gradient.any() for gradient in gradients)


def test_window_covers_left_and_right_inclusively():
    values = jnp.eye(LENGTH).reshape(1, LENGTH, 1, LENGTH)
    windowed = partial(attention, window=(2, 1))
    o = jax.jit(windowed)(Q[:, :, :1], K, values)
    sees = np.asarray(o[0, :, 0]) > 0
    place = np.arange(LENGTH)
    distance = place[None, :] - place[:, None]
    assert np.array_equal(sees, (distance >= -2) & (distance <= 1))


@pytest.mark.parametrize("offset", [15, np.int32(15), np.full((1,), 15, np.int32)])
def test_causal_with_offset_equals_the_last_rows_of_the_whole(offset):
    @jax.jit
    def both():
        place = offset if isinstance(offset, int) else jnp.asarray(offset)
        last = attention(Q[:, 15:], K, V, causal=True, query_offset=place)
        return last, attention(Q, K, V, causal=True)[:, 15:]

    assert relative_error(*both()) <= 1e-6
