"""`restacked`: the same layers, stacked in another way, compute the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.config import replace_config, update_config
from axcore.errors import ModuleError
from axcore.layers import FeedForward, MoE, ScannedLayers, Stack
from axcore.models import mixtral
from axcore.module import functional, restacked


def moved(before, after):
    state = before.init(0)
    return state, restacked(state, before.param_specs(), after.param_specs())


@pytest.mark.slow
def test_unrolled_layers_compute_what_scanned_ones_do_and_the_way_back_is_exact():
    cfg = mixtral("toy")
    scanned, unrolled = cfg.build(), replace_config(cfg, ScannedLayers, Stack.Config()).build()
    state, taken = moved(scanned, unrolled)
    tokens = jnp.arange(12, dtype=jnp.int32).reshape(2, 6)
    expected, got = (
        jax.jit(lambda held, model=model: functional(model, held, tokens, method="logits")[0])(held)
        for model, held in ((scanned, state), (unrolled, taken))
    )
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    back = restacked(taken, unrolled.param_specs(), scanned.param_specs())
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, back, state)))


def test_what_the_state_lacks_is_named():
    dense = replace_config(mixtral("toy"), MoE, lambda old: FeedForward.Config(hidden_dim=8))
    with pytest.raises(ModuleError, match=r"no such array(.|\n)*experts"):
        moved(dense.build(), mixtral("toy").build())


def test_another_shape_is_named():
    cfg = mixtral("toy")
    wide = update_config(cfg, {"vocab_size": cfg.vocab_size + 8})
    with pytest.raises(
        ModuleError, match=rf"shape \({cfg.vocab_size}, .*expected \({wide.vocab_size}"
    ):
        moved(cfg.build(), wide.build())


def test_a_state_of_another_model_is_refused_by_the_name_of_its_array():
    dense = FeedForward.Config(dim=4, hidden_dim=8)
    specs = dense.build().param_specs()
    state = update_config(dense, {"hidden_dim": 6}).build().init(0)
    with pytest.raises(
        ModuleError, match=r"shape \[6, 4\]; expected \[8, 4\]\n *where: *down\.weight"
    ):
        restacked(state, specs, specs)
