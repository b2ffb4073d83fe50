"""Norms against their formulas, and the laws that follow from them."""

import jax.numpy as jnp
import numpy as np
import pytest
from rounding import assert_same_to_rounding

from axcore.config import REQUIRED, config
from axcore.errors import ConfigError, ModuleError
from axcore.layers import Dropout, LayerNorm, PostNorm, PreNorm, RMSNorm
from axcore.module import Module


def test_rms_norm_is_its_formula(call, random, perturbed):
    norm = RMSNorm.Config(dim=8, epsilon=1e-3).build()
    state, x = perturbed(norm.init(0)), random(2, 3, 8)
    wide = x.astype(np.float64)
    expected = (
        wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-3) * np.asarray(state["weight"])
    )
    np.testing.assert_allclose(call(norm, state, x), expected, rtol=1e-5, atol=1e-6)


def test_layer_norm_is_its_formula(call, random, perturbed):
    norm = LayerNorm.Config(dim=8, epsilon=1e-3).build()
    state, x = perturbed(norm.init(0)), random(2, 3, 8)
    wide = x.astype(np.float64)
    normed = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-3)
    expected = normed * np.asarray(state["weight"]) + np.asarray(state["bias"])
    np.testing.assert_allclose(call(norm, state, x), expected, rtol=1e-5, atol=1e-5)


def test_layer_norm_without_bias_is_rms_norm_of_the_centred_input(call, random):
    layer_norm = LayerNorm.Config(dim=8, epsilon=1e-6, has_bias=False).build()
    rms_norm = RMSNorm.Config(dim=8, epsilon=1e-6).build()
    state, x = rms_norm.init(0), random(2, 3, 8)
    centred = x - x.mean(-1, keepdims=True)
    np.testing.assert_allclose(
        call(layer_norm, state, x), call(rms_norm, state, centred), rtol=1e-4, atol=1e-5
    )


def test_weight_offset_stores_the_difference_and_computes_the_same(call, random):
    plain = RMSNorm.Config(dim=8).build()
    offset = RMSNorm.Config(dim=8, weight_offset=1.0).build()
    x = random(2, 3, 8)
    assert np.all(np.asarray(offset.init(0)["weight"]) == 0.0)
    assert_same_to_rounding(call(plain, plain.init(0), x), call(offset, offset.init(0), x))


def test_norms_of_bfloat16_are_computed_in_float32(call, random):
    x = jnp.asarray(100.0 + random(4, 8), jnp.bfloat16)
    for norm in (RMSNorm.Config(dim=8).build(), LayerNorm.Config(dim=8).build()):
        state = norm.init(0)
        got = call(norm, state, x)
        wide = call(norm, state, np.asarray(x, np.float32))
        assert got.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.float32(got), wide, rtol=2**-8, atol=1e-5)


ONES = np.ones((64, 64), np.float32)


def test_dropout_does_nothing_outside_of_training(call, random):
    x = random(3, 4)
    np.testing.assert_array_equal(call(Dropout.Config(rate=0.5).build(), {}, x), x)


def test_rate_zero_draws_no_key(call, random):
    x = random(3, 4)
    np.testing.assert_array_equal(call(Dropout.Config().build(), {}, x, training=True), x)


def test_dropped_are_zero_and_kept_are_scaled_so_that_the_mean_stays(call):
    dropped = call(Dropout.Config(rate=0.25).build(), {}, ONES, rng=0, training=True)
    assert set(np.unique(dropped)) == {np.float32(0.0), np.float32(1.0) / np.float32(0.75)}
    assert abs(dropped.mean() - 1.0) < 0.03
    other = call(Dropout.Config(rate=0.25).build(), {}, ONES, rng=1, training=True)
    assert abs((dropped == other).mean() - (0.75**2 + 0.25**2)) < 0.03


def test_training_without_a_key_is_an_error(call):
    with pytest.raises(ModuleError, match="a random key is needed but the call has none"):
        call(Dropout.Config(rate=0.5).build(), {}, ONES, training=True)


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_impossible_rates_are_refused(rate):
    with pytest.raises(ConfigError, match=rf"rate is {rate}; expected 0 or more and"):
        Dropout.Config(rate=rate).build()


class Cubed(Module):
    """A residual connection around `x -> x^3`."""

    @config
    class Config(Module.Config):
        dim: int = REQUIRED
        residual: Module.Config = PreNorm.Config()

    def setup(self, cfg):
        self.residual = cfg.residual.build(dim=cfg.dim)

    def forward(self, x):
        return self.residual(x, lambda inner: inner**3)


def _norm(x):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)


@pytest.mark.parametrize(
    ("residual", "formula"),
    [
        (PreNorm, lambda x: x + _norm(x) ** 3),
        (PostNorm, lambda x: _norm(x + x**3)),
    ],
)
def test_norm_stands_where_its_formula_says(call, random, residual, formula):
    block = Cubed.Config(dim=4, residual=residual.Config()).build()
    x = random(2, 3, 4)
    np.testing.assert_allclose(call(block, block.init(0), x), formula(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("residual", [PreNorm, PostNorm])
def test_dropout_stands_on_the_branch_and_never_on_the_input(call, random, residual):
    dropout = Dropout.Config(rate=0.999)
    block = Cubed.Config(
        dim=4, residual=residual.Config(dropout=dropout, norm=RMSNorm.Config())
    ).build()
    x = random(2, 3, 4)
    dropped = call(block, block.init(0), x, rng=0, training=True)
    np.testing.assert_allclose(
        dropped, x if residual is PreNorm else _norm(x), rtol=1e-5, atol=1e-5
    )
    assert not np.allclose(call(block, block.init(0), jnp.asarray(x)), dropped)
