"""Mixtures of experts: laws that hold whatever the weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.config import REQUIRED, config, evolve, replace_config
from axcore.errors import ConfigError
from axcore.layers import (
    Dropless,
    FeedForward,
    GroupLimit,
    Linear,
    MoE,
    PlainFeedForward,
    RMSNorm,
    Router,
    TransformerLayer,
)
from axcore.module import Module, functional

DIM, HIDDEN = 8, 12
GATED = FeedForward.Config(hidden_dim=HIDDEN)
BIASED = PlainFeedForward.Config(hidden_dim=HIDDEN, linear=Linear.Config(has_bias=True))
ROUTERS = {
    "softmax": Router.Config(),
    "softmax_as_it_is": Router.Config(is_normalized=False),
    "sigmoid": Router.Config(score="sigmoid", scale=2.5),
    "bias": Router.Config(score="sigmoid", bias_rate=0.1, balance_loss=0.0),
    "groups": Router.Config(groups=GroupLimit(num_groups=2, num_kept=1)),
}


def moe(expert=GATED, num_experts=4, top_k=2, **fields):
    return MoE.Config(dim=DIM, expert=expert, num_experts=num_experts, top_k=top_k, **fields)


def experts_of(state):
    return state["experts"]["expert"]


def one_of(state, index):
    return jax.tree.map(lambda leaf: leaf[index], experts_of(state))


@pytest.fixture
def x(random):
    return random(3, 5, DIM)


@pytest.mark.parametrize("expert", [GATED, BIASED], ids=["gated", "biased"])
def test_one_expert_equals_dense(call, perturbed, x, expert):
    layer = moe(expert, num_experts=1, top_k=1).build()
    state = perturbed(layer.init(0))
    dense = call(evolve(expert, dim=DIM).build(), one_of(state, 0), x)
    np.testing.assert_allclose(call(layer, state, x), dense, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("expert", [GATED, BIASED], ids=["gated", "biased"])
def test_equal_experts_equal_dense(call, perturbed, x, expert):
    layer = moe(expert).build()
    state = perturbed(layer.init(0))
    state["experts"]["expert"] = jax.tree.map(
        lambda leaf: np.broadcast_to(leaf[:1], leaf.shape), experts_of(state)
    )
    dense = call(evolve(expert, dim=DIM).build(), one_of(state, 0), x)
    np.testing.assert_allclose(call(layer, state, x), dense, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("router", ROUTERS.values(), ids=ROUTERS)
def test_output_is_the_weighted_sum_over_chosen_experts(call, perturbed, x, router):
    layer = moe(BIASED, router=router).build()
    state = perturbed(layer.init(0))
    dense = evolve(BIASED, dim=DIM).build()
    outputs = np.stack([call(dense, one_of(state, e), x) for e in range(4)])
    routing = call(layer.router, state["router"], x)
    expected = np.zeros_like(x)
    for place in np.ndindex(*routing.experts.shape):
        e, weight = routing.experts[place], routing.weights[place]
        expected[place[:2]] += weight * outputs[e][place[:2]]
    np.testing.assert_allclose(call(layer, state, x), expected, rtol=1e-4, atol=1e-5)


def test_order_of_experts_does_not_matter(call, perturbed, x):
    layer = moe().build()
    state = perturbed(layer.init(0))
    order = np.array([2, 0, 3, 1])
    permuted = {
        "experts": jax.tree.map(lambda leaf: leaf[order], state["experts"]),
        "router": jax.tree.map(lambda leaf: leaf[:, order], state["router"]),
    }
    np.testing.assert_allclose(call(layer, permuted, x), call(layer, state, x), atol=1e-6)
