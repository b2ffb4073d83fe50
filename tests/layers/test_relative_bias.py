"""Biases by distance: equal to the table's rows by bucket, and refused where there is none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.errors import ConfigError, ModuleError
from axcore.layers import BiasedAttention, RelativeBias, whole_rows
from axcore.layers.attention.relative_bias import relative_buckets
from axcore.module import functional

SIZES = {"num_buckets": 8, "max_distance": 20}


@pytest.mark.parametrize("is_bidirectional", [True, False])
@pytest.mark.parametrize("num_tokens", [1, 2, 9])
def test_each_pair_has_the_number_of_its_distance(num_tokens, is_bidirectional):
    how = {**SIZES, "is_bidirectional": is_bidirectional}
    module = RelativeBias.Config(num_heads=3, **how).build()
    table = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    state = {"weight": jnp.asarray(table)}
    info = whole_rows(jnp.zeros((2, num_tokens), jnp.int32))
    found = functional(module, state, info)[0]
    places = np.arange(num_tokens)
    wanted = table[relative_buckets(places[None] - places[:, None], **how)]
    np.testing.assert_allclose(found[0], wanted.transpose(2, 0, 1))
    gradient = jax.grad(lambda state: functional(module, state, info)[0].sum())(state)
    assert float(gradient["weight"].sum()) == pytest.approx(3 * num_tokens**2)


def test_near_distances_have_buckets_of_their_own_and_far_ones_share_the_last():
    distances = np.array([0, -1, -2, -3, -19, -20, -999, 5, 0])
    found = relative_buckets(distances, **SIZES, is_bidirectional=False)
    assert found[[0, 1, 2, 3, 5, 6, 7]].tolist() == [0, 1, 2, 3, 7, 7, 0]
    both = relative_buckets(np.array([-1, 1, -999, 999]), **SIZES, is_bidirectional=True)
    assert both.tolist() == [1, 5, 3, 7]


def test_buckets_that_are_too_few_are_refused():
    with pytest.raises(ConfigError, match="num_buckets is 3 and max_distance 128: 0 buckets"):
        RelativeBias.Config(num_heads=1, num_buckets=3).build()


def test_without_a_bias_around_it_attention_says_how_to_set_one():
    x = jnp.zeros((1, 4, 2, 8))
    module = BiasedAttention.Config(num_heads=2).build()
    with pytest.raises(ModuleError, match=r"there is none[\s\S]*with_shared\(POSITION_BIAS"):
        functional(module, {}, x, x, x, whole_rows(x[:, :, 0, 0]))
