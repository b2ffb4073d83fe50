"""Norms against their formulas, and the laws that follow from them."""

import jax.numpy as jnp
import numpy as np
from rounding import assert_same_to_rounding

from axcore.layers import LayerNorm, RMSNorm


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
