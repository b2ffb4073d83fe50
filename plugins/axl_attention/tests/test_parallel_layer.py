"""Attention beside a feed-forward."""

import numpy as np
from axl_attention.layers import with_parallel_layer

from axcore.layers import Attention, FeedForward, TransformerLayer


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
