"""What holds of every variant, in every layer of a small transformer."""

import jax
import numpy as np
import pytest

from axcore.config import evolve, replace_config
from axcore.layers import ScannedLayers, Stack, TransformerLayer
from axcore.models import transformer
from axcore.modifiers import with_variant
from axcore.module import Remat
from axcore.plugins import LayerVariant, plugin_host

VARIANTS = sorted(
    record.name
    for record in plugin_host().records(LayerVariant)
    if record.plugin == "axl-attention"
)
TOKENS = np.arange(16, dtype=np.int32).reshape(2, 8)

pytestmark = pytest.mark.slow


def model(name):
    cfg = transformer(
        vocab_size=264, dim=32, num_layers=2, num_heads=4, num_kv_heads=2, hidden_dim=48
    )
    return with_variant(cfg, name)


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_learns_causally_and_under_a_scan(run_model, name):
    """Every parameter has a gradient, and layers scanned under remat equal layers unrolled."""
    unrolled = replace_config(
        model(name),
        ScannedLayers,
        lambda old: Stack.Config(num_layers=old.num_layers, layer=old.layer),
    )
    state, run = run_model(unrolled)
    loss, gradient, logits = run(state, TOKENS)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        is_first_share = name == "value_residual" and "['0']" in jax.tree_util.keystr(path)
        assert np.all(np.isfinite(leaf))
        assert np.any(leaf) or is_first_share, f"no gradient at {jax.tree_util.keystr(path)}"
    stepped = jax.tree.map(lambda x, slope: x - 0.02 * slope, state, gradient)
    assert run(stepped, TOKENS)[0] < loss
    changed = TOKENS.copy()
    changed[:, 5] = 99
    after = run(state, changed)[2]
    np.testing.assert_allclose(after[:, :5], logits[:, :5], atol=1e-5)
    assert not np.allclose(after[:, 5], logits[:, 5], atol=1e-3)

    scanned = replace_config(
        model(name), TransformerLayer, lambda layer: evolve(layer, remat=Remat())
    )
    got_loss, got_gradient, _ = run_model(scanned)[1](_stacked(state), TOKENS)
    np.testing.assert_allclose(got_loss, loss, rtol=1e-5)
    jax.tree.map(
        lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5),
        got_gradient,
        _stacked(gradient),
    )


def _stacked(state):
    """Return the state of a `ScannedLayers` from that of a `Stack`."""
    layers = state["decoder"]["stack"]["layer"].values()
    one = jax.tree.map(lambda *leaves: np.stack(leaves), *layers)
    return {**state, "decoder": {**state["decoder"], "stack": {"layer": one}}}
