"""Infinite logits: they hide, or their row is NaN and nobody else's; never a plausible number."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.ops import cross_entropy, decode_attention
from axcore.ops.attention.blockwise import blockwise_backward, blockwise_forward
from axcore.ops.attention.kernels import attention_dense, attention_reference
from axcore.ops.attention.op import AttentionInputs, AttentionSpec, attention_custom_vjp
from axcore.ops.contract import relative_error

ATTENDS = {
    "reference": attention_reference,
    "dense": attention_dense,
    "blockwise": partial(
        attention_custom_vjp,
        forward=partial(blockwise_forward, block_size=16),
        backward=partial(blockwise_backward, block_size=16),
    ),
}
NUMBERS = np.random.default_rng(0)
Q, K, V = (jnp.asarray(NUMBERS.standard_normal((1, 24, 1, 8), np.float32)) for _ in range(3))
ROW = 5


def attended(name, bias):
    """Return the output and the gradient of q."""

    def loss(q):
        inputs = AttentionInputs(q, K, V, bias_BNTS=bias)
        o, _ = ATTENDS[name](inputs, AttentionSpec(scale=0.3))
        return jnp.sum(jnp.where(jnp.isnan(o), 0.0, o)), o

    gradient, o = jax.jit(jax.grad(loss, has_aux=True))(Q)
    return o, gradient


@pytest.mark.parametrize("name", ATTENDS)
@pytest.mark.quick_one_in(3)
def test_row_with_an_infinite_logit_is_nan_and_no_other(name):
    plain = jnp.zeros((1, 1, 24, 24))
    wanted, _ = attended(name, plain)
    o, gradient = attended(name, plain.at[0, 0, ROW, 20].set(jnp.inf))
    others = np.arange(24) != ROW
    assert jnp.isnan(o[:, ROW]).all()
    assert relative_error(o[:, others], wanted[:, others]) <= 1e-6
    assert jnp.isfinite(gradient[:, others]).all()


@pytest.mark.parametrize("name", ATTENDS)
@pytest.mark.quick_one_in(3)
def test_logits_of_minus_infinity_hide(name):
    hidden = jnp.zeros((1, 1, 24, 24)).at[..., 3:].set(-jnp.inf).at[:, :, ROW].set(-jnp.inf)
    o, gradient = attended(name, hidden)
    first = AttentionInputs(Q, K[:, :3], V[:, :3])
    wanted, _ = attention_reference(first, AttentionSpec(scale=0.3))
    assert relative_error(o, wanted.at[:, ROW].set(0.0)) <= 1e-6
    assert not gradient[:, ROW].any()
    assert jnp.isfinite(gradient).all()


def test_infinite_logit_of_a_decoding_row_is_nan_there_only():
    q = jnp.concatenate([jnp.full((1, 1, 1, 8), 3e38), Q[:, :1]])
    cache = [jnp.concatenate([jnp.abs(x), x]) for x in (K, V)]
    o = decode_attention(q, *cache, jnp.asarray([24, 24]), scale=1.0)
    assert jnp.isnan(o[0]).all()
    assert jnp.isfinite(o[1]).all()


@pytest.mark.parametrize(("token", "size"), [(0, 3e38), (1, -3e38)])
def test_infinite_logits_of_a_token_show_in_the_loss(token, size):
    """Large enough, hidden states overflow: up for one token, and for its target for the other."""
    w = jnp.ones((4, 6)).at[:, 1:].set(0.1)
    x = jnp.ones((1, 2, 4)).at[0, token].set(size)
    targets, weights = jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 2))
    loss, weight = cross_entropy(x, w, targets, weights)
    assert not jnp.isfinite(loss)
    assert float(weight) == 2.0
    masked, _ = cross_entropy(x.at[0, token].set(1.0), w, targets, weights)
    assert jnp.isfinite(masked)
