"""`ClampedFeedForward` is its formula, and a unit's size has a bound."""

import jax
import numpy as np
from axl_attention.layers import ClampedFeedForward
from numpy_state import numpy_state

from axcore.module import functional

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
