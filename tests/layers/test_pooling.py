"""Pools, cross-attention, and norms of channels: formulas, and padding that changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rounding import assert_same_to_rounding

from axcore.config import update_config
from axcore.errors import ConfigError, ModuleError
from axcore.layers import (
    CROSS_SOURCE,
    Attention,
    AttentionPool,
    BatchNorm,
    CrossAttention,
    CrossSource,
    CrossTransformerLayer,
    FirstToken,
    GroupNorm,
    LastToken,
    MeanPool,
    PlainFeedForward,
    PreNorm,
    ScannedLayers,
    StochasticDepth,
    whole_rows,
)
from axcore.module import Module, functional

POOLS = {
    "first": FirstToken.Config(dim=8),
    "last": LastToken.Config(dim=8),
    "mean": MeanPool.Config(dim=8),
    "attention": AttentionPool.Config(
        dim=8,
        attention=CrossAttention.Config(num_heads=2),
        feed_forward=PlainFeedForward.Config(hidden_dim=16),
    ),
}


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_does_not_see_padding(name, call, random, perturbed):
    pool = POOLS[name].build()
    state, x = perturbed(pool.init(0)), random(2, 5, 8)
    long = np.concatenate([x, 100 * random(2, 3, 8)], axis=1)
    is_real = np.arange(8)[None, :] < np.array([[5], [3]])
    found = call(pool, state, long, is_real)
    assert_same_to_rounding(found[:1], call(pool, state, x[:1]))
    assert_same_to_rounding(found[1:], call(pool, state, x[1:, :3]))


def test_pools_are_what_they_are_called(call, random):
    x = random(2, 5, 8)
    for name, wanted in (("first", x[:, 0]), ("last", x[:, -1]), ("mean", x.mean(1))):
        pool = POOLS[name].build()
        assert_same_to_rounding(call(pool, pool.init(0), x), wanted)


def test_cross_attention_to_itself_is_self_attention(call, random, perturbed):
    cross = CrossAttention.Config(dim=8, source_dim=8, num_heads=2).build()
    own = update_config(Attention.Config(dim=8, num_heads=2), {"core.is_causal": False}).build()
    state, x = perturbed(cross.init(0)), random(2, 5, 8)
    assert_same_to_rounding(
        call(cross, state, x, x), call(own, state, x, whole_rows(jnp.asarray(x)))
    )


def test_cross_attention_takes_other_sizes_and_sees_no_padding(call, random, perturbed):
    cross = CrossAttention.Config(dim=8, source_dim=6, num_heads=2).build()
    state, x, source = perturbed(cross.init(0)), random(1, 3, 8), random(1, 4, 6)
    long = np.concatenate([source, 100 * random(1, 2, 6)], axis=1)
    found = call(cross, state, x, long, np.arange(6)[None, :] < 4)
    assert_same_to_rounding(found, call(cross, state, x, source))


def _decoder_layer():
    return CrossTransformerLayer.Config(
        dim=8,
        source_dim=6,
        attention=Attention.Config(num_heads=2),
        cross_attention=CrossAttention.Config(num_heads=2),
        feed_forward=PlainFeedForward.Config(hidden_dim=16),
    ).build()


def test_a_layer_without_an_encoder_says_so():
    layer, x = _decoder_layer(), jnp.ones((1, 3, 8))
    with pytest.raises(ModuleError, match="without an encoder's tokens"):
        functional(layer, layer.init(0), x, whole_rows(x))


def test_group_norm_is_its_formula_and_counts_no_padding(call, random, perturbed):
    norm = GroupNorm.Config(dim=6, num_groups=2, epsilon=1e-3).build()
    state, x = perturbed(norm.init(0)), random(2, 4, 6)
    groups = x.astype(np.float64).reshape(2, 4, 2, 3)
    mean, variance = (f(groups, axis=(1, 3), keepdims=True) for f in (np.mean, np.var))
    normed = ((groups - mean) / np.sqrt(variance + 1e-3)).reshape(x.shape)
    wanted = normed * np.asarray(state["weight"]) + np.asarray(state["bias"])
    np.testing.assert_allclose(call(norm, state, x), wanted, rtol=1e-4, atol=1e-5)
    long = np.concatenate([x, 100 * random(2, 2, 6)], axis=1)
    is_real = np.broadcast_to(np.arange(6)[None, :] < 4, (2, 6))
    assert_same_to_rounding(call(norm, state, long, is_real)[:, :4], call(norm, state, x))


def test_groups_divide_the_channels():
    with pytest.raises(ConfigError, match="not a multiple of num_groups, 4"):
        GroupNorm.Config(dim=6, num_groups=4).build()


def test_batch_norm_normalises_a_batch_and_keeps_running_statistics(random):
    norm = BatchNorm.Config(dim=3, decay=0.75).build()
    state, x = norm.init(0), jnp.asarray(2 + 3 * random(4, 5, 3))
    y, outputs = functional(norm, state, x, training=True)
    np.testing.assert_allclose(np.mean(y, axis=(0, 1)), 0, atol=1e-5)
    np.testing.assert_allclose(np.var(y, axis=(0, 1)), 1, rtol=1e-4)
    kept = {path[-1]: np.asarray(value) for path, value in outputs.updates.items()}
    np.testing.assert_allclose(kept["mean"], 0.25 * x.mean((0, 1)), rtol=1e-5)
    np.testing.assert_allclose(kept["variance"], 0.75 + 0.25 * x.var((0, 1)), rtol=1e-5)


def test_batch_norm_in_an_evaluation_uses_what_it_kept(call, random):
    norm = BatchNorm.Config(dim=3).build()
    state = {
        **norm.init(0),
        "mean": np.full(3, 2, np.float32),
        "variance": np.full(3, 4, np.float32),
    }
    x = random(2, 3)
    np.testing.assert_allclose(
        call(norm, state, x), (x - 2) / np.sqrt(4 + 1e-5), rtol=1e-5, atol=1e-6
    )


def test_stochastic_depth_drops_rows_and_keeps_the_mean(random):
    residual = PreNorm.Config(dim=4, dropout=StochasticDepth.Config(rate=0.5)).build()
    x = jnp.ones((4000, 2, 4))
    y, _ = functional(
        residual, residual.init(0), x, jnp.ones_like, rng=jax.random.key(0), training=True
    )
    kept = np.asarray(y)[:, 0, 0]
    assert set(np.unique(kept)) == {1.0, 3.0}
    assert np.all(np.asarray(y) == kept[:, None, None])
    assert kept.mean() == pytest.approx(2, abs=0.1)


def test_shared_sources_reach_scanned_layers(random):
    class Reads(Module):
        def setup(self, cfg):
            layer = CrossTransformerLayer.Config(
                source_dim=6,
                attention=Attention.Config(num_heads=2),
                cross_attention=CrossAttention.Config(num_heads=2),
                feed_forward=PlainFeedForward.Config(hidden_dim=16),
            )
            self.stack = ScannedLayers.Config(num_layers=2, layer=layer).build(dim=8)

        def forward(self, x, source):
            self.set_shared(CROSS_SOURCE, CrossSource(source))
            return self.stack(x, whole_rows(x))

    model, x = Reads.Config().build(), jnp.asarray(random(1, 3, 8))
    state, source = model.init(0), jnp.asarray(random(1, 5, 6))
    gradient = jax.grad(lambda s: jnp.sum(functional(model, state, x, s)[0] ** 2))(source)
    assert np.all(np.abs(gradient).max(-1) > 0)


@pytest.mark.parametrize("norm", [GroupNorm.Config(dim=4, num_groups=2), BatchNorm.Config(dim=4)])
def test_a_row_of_padding_makes_no_nan_in_a_norm(norm, random):
    module, x = norm.build(), jnp.asarray(random(2, 3, 4))
    is_real = jnp.array([[True] * 3, [False] * 3])

    def total(x, is_real):
        return jnp.sum(functional(module, module.init(0), x, is_real, training=True)[0] ** 2)

    for real in (is_real, jnp.zeros_like(is_real)):
        assert jnp.all(jnp.isfinite(jax.grad(total)(x, real)))


def test_heads_that_do_not_divide_a_vector_are_named():
    with pytest.raises(ConfigError, match="dim is 10, not a multiple of num_heads, 4"):
        CrossAttention.Config(dim=10, source_dim=6, num_heads=4).build()


def test_cross_attention_over_padding_alone_has_a_finite_gradient(random, perturbed):
    cross = CrossAttention.Config(dim=8, source_dim=6, num_heads=2).build()
    state = jax.tree.map(jnp.asarray, perturbed(cross.init(0)))
    x, source = jnp.asarray(random(1, 3, 8)), random(1, 4, 6)
    nothing = jnp.zeros((1, 4), bool)
    total = lambda s: jnp.sum(functional(cross, state, x, s, nothing)[0] ** 2)  # noqa: E731
    assert jnp.all(jnp.isfinite(jax.grad(total)(jnp.asarray(source))))
