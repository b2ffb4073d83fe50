"""`Stack`, unrolled, and `ScannedLayers`, scanned, are the same layers with the same randomness."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.config import REQUIRED, config, replace_config
from axcore.layers import (
    Attention,
    Dropout,
    FeedForward,
    ScannedLayers,
    Stack,
    TokenInfo,
    TransformerLayer,
)
from axcore.module import Module, Remat, functional

LAYERS = 3


class Sized(Module):
    """A feed-forward that adds the size of its output as a loss."""

    @config
    class Config(Module.Config):
        dim: int = REQUIRED
        inner: Module.Config = REQUIRED

    def setup(self, cfg):
        self.inner = cfg.inner.build(dim=cfg.dim)

    def forward(self, x):
        y = self.inner(x)
        self.add_loss("size", (y**2).sum(), y.size, scale=0.1)
        return y


def _layer(remat):
    cfg = TransformerLayer.Config(
        attention=Attention.Config(num_heads=2),
        feed_forward=Sized.Config(inner=FeedForward.Config(hidden_dim=12)),
        remat=remat,
    )
    return replace_config(cfg, Dropout, Dropout.Config(rate=0.3))


@pytest.fixture(scope="module")
def inputs():
    x = np.random.default_rng(0).normal(size=(2, 6, 8)).astype(np.float32)
    positions = np.broadcast_to(np.arange(6, dtype=np.int32), (2, 6))
    return jnp.asarray(x), TokenInfo(jnp.asarray(positions), jnp.ones((2, 6), jnp.int32))


def _built(kind, remat=None, **fields):
    return kind.Config(dim=8, num_layers=LAYERS, layer=_layer(remat), **fields).build()


def _run(module, state, inputs):
    """Returns the result, the total loss, and the gradient by the state."""

    def loss(state):
        y, outputs = functional(module, state, *inputs, rng=7, training=True)
        return (y**2).sum() + outputs.total_loss(), (y, outputs.total_loss())

    gradient, (y, total) = jax.jit(jax.grad(loss, has_aux=True))(state)
    return y, total, gradient


def _stacked(state):
    layers = [state["layer"][str(i)] for i in range(LAYERS)]
    return {"layer": jax.tree.map(lambda *leaves: np.stack(leaves), *layers)}


@pytest.fixture(scope="module")
def unrolled(inputs):
    stack = _built(Stack)
    state = jax.jit(stack.init)(jax.random.key(0))
    return state, _run(stack, state, inputs)


@pytest.mark.slow
def test_equal_keys_give_equal_parameters(unrolled):
    repeat = _built(ScannedLayers)
    jax.tree.map(  # two programs: a compiler may round their samples otherwise
        partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6),
        jax.jit(repeat.init)(jax.random.key(0)),
        _stacked(unrolled[0]),
    )


@pytest.mark.parametrize(
    ("remat", "unroll"),
    [
        (None, 1),
        (Remat(save=("attention_out",)), 1),
        (Remat(save_dots=True), 1),
        (None, 2),
        (Remat(), LAYERS),
        (None, LAYERS + 1),
    ],
)
@pytest.mark.quick_one_in(6)
def test_scanned_equals_unrolled_with_dropout(unrolled, inputs, remat, unroll):
    state, (y, total, gradient) = unrolled
    scanned_y, scanned_total, scanned_gradient = _run(
        _built(ScannedLayers, remat, unroll=unroll), _stacked(state), inputs
    )
    np.testing.assert_allclose(scanned_y, y, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(scanned_total, total, rtol=1e-5)
    for got, expected in zip(
        jax.tree.leaves(scanned_gradient), jax.tree.leaves(_stacked(gradient)), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_rematerialised_stack_equals_stack(unrolled, inputs):
    state, (y, total, gradient) = unrolled
    again_y, again_total, again_gradient = _run(_built(Stack, Remat()), state, inputs)
    np.testing.assert_allclose(again_y, y, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(again_total, total, rtol=1e-5)
    for got, expected in zip(
        jax.tree.leaves(again_gradient), jax.tree.leaves(gradient), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_every_layer_drops_other_elements(unrolled, inputs):
    """With equal weights in all layers only dropout distinguishes them."""
    repeat = _built(ScannedLayers)
    first = unrolled[0]["layer"]["0"]
    state = {"layer": jax.tree.map(lambda leaf: jnp.stack([leaf] * LAYERS), first)}
    run = jax.jit(
        lambda state: (
            functional(
                repeat,
                state,
                *inputs,
                rng=7,
                training=True,
                capture=("**.attention_residual.dropout",),
            )[1].captures
        )
    )
    (kept,) = (np.asarray(value) != 0 for value in run(state).values())
    assert kept.shape[0] == LAYERS
    assert not np.array_equal(kept[0], kept[1])
    assert not np.array_equal(kept[1], kept[2])
