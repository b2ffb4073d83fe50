"""Feed-forwards against their formulas."""

import math

import numpy as np
import pytest

from axcore.layers import FeedForward, PlainFeedForward

_erf = np.vectorize(math.erf)

ACTIVATIONS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * (1 + _erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: np.maximum(x, 0),
    "squared_relu": lambda x: np.maximum(x, 0) ** 2,
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated_feed_forward_is_its_formula(call, random, activation):
    layer = FeedForward.Config(dim=6, hidden_dim=10, activation=activation).build()
    state, x = layer.init(0), random(2, 3, 6)
    gate, up, down = (np.asarray(state[name]["weight"]) for name in ("gate", "up", "down"))
    expected = (ACTIVATIONS[activation](x @ gate) * (x @ up)) @ down
    np.testing.assert_allclose(call(layer, state, x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["gelu_tanh", "relu"])
def test_plain_feed_forward_is_its_formula(call, random, activation):
    layer = PlainFeedForward.Config(dim=6, hidden_dim=10, activation=activation).build()
    state, x = layer.init(0), random(2, 3, 6)
    up, down = (np.asarray(state[name]["weight"]) for name in ("up", "down"))
    expected = ACTIVATIONS[activation](x @ up) @ down
    np.testing.assert_allclose(call(layer, state, x), expected, rtol=1e-4, atol=1e-5)
