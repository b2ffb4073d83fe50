"""Attention parallel to a feed-forward."""

import jax
import numpy as np
from axl_attention.layers import ClampedFeedForward, with_parallel_layer
from numpy_state import numpy_state

from axcore.layers import Attention, FeedForward, TransformerLayer
from axcore.module import functional


def layer():
    return TransformerLayer.Config(
        attention=Attention.Config(num_heads=2), feed_forward=FeedForward.Config(hidden_dim=6)
    )


def test_both_branches_see_the_layers_input(random, whole, state_of, call):
    """Branches by themselves are those of layers whose other branch adds nothing."""
    module, x = with_parallel_layer(layer()).build(dim=4), random(2, 8, 4)
    state = state_of(module)
    parts = [
        {**state, name: {**state[name], last: {"weight": 0 * state[name][last]["weight"]}}}
        for name, last in (("feed_forward", "down"), ("attention", "out"))
    ]
    added = [call(module, part, x, whole) - x for part in parts]
    np.testing.assert_allclose(call(module, state, x, whole), x + sum(added), atol=1e-5)
    assert all(np.abs(one).max() > 1e-2 for one in added)


LAYER = ClampedFeedForward.Config(dim=4, hidden_dim=6, limit=0.5).build()


def test_it_is_its_formula_where_both_sides_are_cut_off():
    state = numpy_state(LAYER.param_specs())
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    gate, up = (x @ state[name]["weight"] for name in ("gate", "up"))
    assert gate.max() > 0.5 > -0.5 > gate.min()
    assert up.max() > 0.5 > -0.5 > up.min()
    gate, up = np.minimum(gate, 0.5), np.clip(up, -0.5, 0.5)
    expected = (up + 1) * gate / (1 + np.exp(-1.702 * gate)) @ state["down"]["weight"]
    found, _ = jax.jit(lambda state, x: functional(LAYER, state, x))(state, x)
    np.testing.assert_allclose(found, expected, atol=1e-5)
