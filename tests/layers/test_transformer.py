"""A transformer layer is its parts, one after the other."""

import math

import numpy as np
import pytest

from axcore.layers import (
    Attention,
    FeedForward,
    PlainFeedForward,
    PostNorm,
    RMSNorm,
    TokenInfo,
    TransformerLayer,
)


def _parts(cfg):
    return (
        cfg.attention.build(dim=8),
        cfg.feed_forward.build(dim=8),
        RMSNorm.Config(dim=8).build(),
    )


def _config(**fields):
    return TransformerLayer.Config(
        dim=8,
        attention=Attention.Config(num_heads=2),
        feed_forward=FeedForward.Config(hidden_dim=12),
        **fields,
    )


def _info():
    return TokenInfo(np.broadcast_to(np.arange(5, dtype=np.int32), (2, 5)))


def test_pre_norm_layer_is_its_parts(call, random, perturbed):
    cfg = _config()
    layer, (attention, feed_forward, norm) = cfg.build(), _parts(cfg)
    state, x, info = perturbed(layer.init(0)), random(2, 5, 8), _info()
    first, second = (
        state[name]["norm"] for name in ("attention_residual", "feed_forward_residual")
    )
    y = x + call(attention, state["attention"], call(norm, first, x), info)
    y = y + call(feed_forward, state["feed_forward"], call(norm, second, y))
    np.testing.assert_allclose(call(layer, state, x, info), y, rtol=1e-5, atol=1e-5)


def test_post_norm_layer_is_its_parts(call, random, perturbed):
    cfg = _config(residual=PostNorm.Config())
    layer, (attention, feed_forward, norm) = cfg.build(), _parts(cfg)
    state, x, info = perturbed(layer.init(0)), random(2, 5, 8), _info()
    first, second = (
        state[name]["norm"] for name in ("attention_residual", "feed_forward_residual")
    )
    y = call(norm, first, x + call(attention, state["attention"], x, info))
    y = call(norm, second, y + call(feed_forward, state["feed_forward"], y))
    np.testing.assert_allclose(call(layer, state, x, info), y, rtol=1e-5, atol=1e-5)


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
