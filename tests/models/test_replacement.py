"""Every part of the model can be swapped from outside, over the full model at once."""

import jax
import numpy as np
import pytest

from axcore.config import evolve, find_config, replace_config, update_config
from axcore.layers import (
    FeedForward,
    LayerNorm,
    NoPosition,
    PlainFeedForward,
    PostNorm,
    PreNorm,
    RMSNorm,
    RoPE,
    ScannedLayers,
    Stack,
)
from axcore.module import Remat, count_params

DIM, HIDDEN, LAYERS = 16, 24, 2

SWAPS = {
    "plain feed-forward": (FeedForward, PlainFeedForward, -LAYERS * DIM * HIDDEN),
    "layer norm": (RMSNorm, LayerNorm, (2 * LAYERS + 1) * DIM),
    "post norm": (PreNorm, PostNorm, 0),
    "no position": (RoPE, NoPosition, 0),
    "unrolled": (ScannedLayers, Stack, 0),
}


@pytest.mark.parametrize("name", SWAPS)
def test_swap_reaches_every_layer_and_keeps_what_the_old_part_was_told(cfg, name):
    old, new, more_params = SWAPS[name]
    swapped = replace_config(cfg, old, new.Config())
    assert not find_config(swapped, old)
    assert [found.path for found in find_config(swapped, new)] == [
        found.path for found in find_config(cfg, old)
    ]
    before, after = (count_params(one.build().param_specs()) for one in (cfg, swapped))
    assert after - before == more_params


@pytest.mark.slow
def test_swapped_model_trains(run, cfg, batch):
    """Three parts swapped at once; gradient descent halves the loss of one batch."""
    swapped = replace_config(cfg, FeedForward, PlainFeedForward.Config())
    swapped = replace_config(swapped, RMSNorm, LayerNorm.Config())
    swapped = replace_config(swapped, PreNorm, lambda old: PostNorm.Config(norm=old.norm))
    state = run.state(swapped)
    losses = []
    for _ in range(40):
        got = run(swapped, state, batch)
        losses.append(float(got["total"]))
        state = jax.tree.map(lambda x, g: x - 0.3 * g, state, got["gradient"])
    assert losses[-1] < losses[0] / 2


def test_unrolled_model_equals_the_scanned_one(run, cfg, batch):
    unrolled = replace_config(cfg, ScannedLayers, Stack.Config())
    state = run.state(cfg)
    stacked = state["decoder"]["stack"]["layer"]
    layers = {str(i): jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(LAYERS)}
    same = {**state, "decoder": {**state["decoder"], "stack": {"layer": layers}}}
    got, expected = run(unrolled, same, batch), run(cfg, state, batch)
    np.testing.assert_allclose(got["logits"], expected["logits"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got["total"], expected["total"], rtol=1e-6)
    gradient = got["gradient"]["decoder"]["stack"]["layer"]
    restacked = jax.tree.map(lambda *leaves: np.stack(leaves), *(gradient[str(i)] for i in (0, 1)))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
        restacked,
        expected["gradient"]["decoder"]["stack"]["layer"],
    )


@pytest.mark.slow
def test_remat_changes_no_number(run, cfg, batch):
    state = run.state(cfg)
    layer = "decoder.stack.layer"
    remat = {f"{layer}.remat": Remat(), f"{layer}.attention.remat": Remat(save=("attention_out",))}
    got = run(update_config(cfg, remat), state, batch)
    expected = run(cfg, state, batch)
    np.testing.assert_allclose(got["total"], expected["total"], rtol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
        got["gradient"],
        expected["gradient"],
    )


@pytest.mark.slow
def test_without_positions_one_layer_sees_a_set(run, cfg, whole_rows):
    """The last token of one layer without positions does not know the order of those before."""
    one_layer = update_config(cfg, {"decoder.stack.num_layers": 1})
    tokens = np.random.default_rng(0).permutation(17)[None, :8]
    shuffled = tokens[:, [3, 0, 6, 1, 5, 2, 4, 7]]
    for position, knows_order in ((RoPE, True), (NoPosition, False)):
        model = replace_config(one_layer, RoPE, position.Config())
        state = run.state(model)
        ordered, other = (
            run(model, state, whole_rows(np.concatenate([rows, tokens])))["logits"][0, -1]
            for rows in (tokens, shuffled)
        )
        assert np.allclose(ordered, other, atol=1e-5) != knows_order


def test_configs_are_values(cfg):
    assert evolve(cfg) == cfg
    assert hash(evolve(cfg)) == hash(cfg)
