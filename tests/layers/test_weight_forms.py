"""A layer that serves keeps a weight in a form of its own, and multiplies by that weight."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.layers import Linear, PanelLinear, QuantizedLinear
from axcore.layers.quantization.stored_weights import FORMS, kept_weight
from axcore.module import DTypes, functional

SIZES = {"in_dim": 64, "out_dim": 100, "axes": ("embed", "mlp")}
LAYERS = {
    "panels": (PanelLinear.Config(**SIZES), 1e-6),
    "panels16": (PanelLinear.Config(**SIZES, dtypes=DTypes(param="bfloat16")), 1 / 128),
    "int8": (QuantizedLinear.Config(**SIZES), 1 / 127),
    "int4": (QuantizedLinear.Config(**SIZES, format="int4", group_size=32), 1 / 7),
    "float8": (QuantizedLinear.Config(**SIZES, format="float8_e4m3fn"), 1 / 16),
}


def test_every_form_has_an_array_that_no_other_has():
    known = [set(FORMS) & set(cfg.build().param_specs()) for cfg, _ in LAYERS.values()]
    assert [len(names) for names in known] == [1] * len(LAYERS)
    assert set.union(*known) == set(FORMS)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_with_what_is_kept_of_a_weight(name):
    cfg, tolerance = LAYERS[name]
    wide, layer = Linear.Config(**SIZES).build(), cfg.build()
    state, specs = wide.init(0), layer.param_specs()
    kept = kept_weight(specs, state["weight"])
    assert {one: (array.shape, str(array.dtype)) for one, array in kept.items()} == {
        one: (spec.shape, spec.dtype) for one, spec in specs.items()
    }
    x = jax.random.normal(jax.random.key(1), (3, 64), jnp.float32)
    found, expected = (functional(*what, x)[0] for what in ((layer, kept), (wide, state)))
    np.testing.assert_allclose(found, expected, atol=tolerance * np.abs(expected).max())
