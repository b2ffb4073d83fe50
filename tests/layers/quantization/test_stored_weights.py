"""Weights in low precision are close to those in full precision, and take less memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from axcore.config import config
from axcore.errors import ConfigError
from axcore.layers import (
    Linear,
    PackedLinear,
    PackedQuantizedLinear,
    QuantizedLinear,
    quantize_weights,
)
from axcore.layers.linear import GROUP_SIZES
from axcore.layers.quantization.stored_weights import (
    FORMS,
    full_precision_weight,
    kept_weight,
    packed_int4,
    quantized_weight,
    unpacked_int4,
)
from axcore.models.causal_lm import QuantizedHead
from axcore.module import DTypes, Module, StackedModule, functional

STEPS = {"int8": 127, "int4": 7}
BYTES = {"int8": 1.0, "int4": 0.5, "float8_e4m3fn": 1.0}


def weight_of(seed, rows=64, columns=12):
    scales = np.random.default_rng(seed).lognormal(0, 2, (1, columns))
    return jnp.asarray(np.random.default_rng(seed).normal(0, scales, (rows, columns)), jnp.float32)


@pytest.mark.parametrize("how", BYTES)
@pytest.mark.parametrize("num_groups", [1, 4])
@pytest.mark.quick_one_in(2)
def test_each_number_is_off_by_half_a_step_at_most(how, num_groups):
    weight = weight_of(0)
    values, scale = quantized_weight(weight, how, num_groups)
    wide = full_precision_weight(unpacked_int4(values) if how == "int4" else values, scale)
    error = np.abs(np.asarray(wide - weight))
    amax = np.abs(np.asarray(weight)).reshape(num_groups, -1, weight.shape[1]).max(1, keepdims=True)
    amax = np.broadcast_to(amax, (num_groups, 64 // num_groups, 12)).reshape(weight.shape)
    if how in STEPS:
        assert (error <= amax / (2 * STEPS[how]) * 1.0001).all()
        assert error.max() > 0
    else:
        assert (error <= np.maximum(np.abs(weight) / 16, amax / 448 * 2.0**-9)).all()


@pytest.mark.slow
@given(
    values=st.lists(st.integers(-8, 7), min_size=2, max_size=20).filter(lambda v: len(v) % 2 == 0)
)
@settings(max_examples=25, deadline=None)
def test_two_numbers_in_a_byte_come_out_as_they_went_in(values):
    column = np.asarray(values, np.int8)[:, None]
    packed = packed_int4(jnp.asarray(column))
    assert packed.nbytes * 2 == column.nbytes
    np.testing.assert_array_equal(unpacked_int4(packed), column)


@pytest.mark.parametrize("how", BYTES)
@pytest.mark.parametrize("group_size", [None, 16])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.quick_one_in(3)
def test_a_layer_multiplies_by_the_weight_that_it_keeps(how, group_size, dtype):
    sizes = {"in_dim": 64, "out_dim": 12, "axes": ("embed", "mlp"), "has_bias": True}
    wide = Linear.Config(**sizes).build()
    state = wide.init(1)
    state["bias"] = state["bias"] + 3.0
    dtypes = DTypes(compute=dtype)
    narrow = QuantizedLinear.Config(
        **sizes, dtypes=dtypes, format=how, group_size=group_size
    ).build()
    kept = quantize_weights(narrow.param_specs(), state)
    x = jax.random.normal(jax.random.key(2), (2, 5, 64)).astype(dtype)
    found, _ = functional(narrow, kept, x)
    values = kept["weight_values"]
    weight = full_precision_weight(
        unpacked_int4(values) if how == "int4" else values, kept["weight_scale"]
    )
    expected = np.asarray(x, np.float32) @ np.asarray(weight) + 3.0
    assert found.dtype == dtype
    tolerance = 1e-5 if dtype == "float32" else 0.05
    np.testing.assert_allclose(np.asarray(found, np.float32), expected, atol=tolerance)
    plain = functional(wide, state, x.astype(jnp.float32))[0]
    assert np.abs(np.asarray(plain) - expected).max() > 1e-4  # it is the narrow one
    specs = narrow.param_specs()
    assert {n: (s.shape, str(s.dtype)) for n, s in specs.items()} == {
        n: (a.shape, str(a.dtype)) for n, a in kept.items()
    }
    assert values.nbytes == BYTES[how] * 64 * 12


class Stacked(Module):
    """Experts with rows of their own."""

    @config
    class Config(Module.Config["Stacked"]):
        linear: Module.Config
        num_experts: int

    def setup(self, cfg):
        self.expert = StackedModule(cfg.linear.build(), cfg.num_experts, axis="expert")

    def forward(self, rows, sizes):
        with self.with_shared(GROUP_SIZES, sizes):
            return self.expert.call_stacked(rows[None])[0]


@pytest.mark.parametrize("how", BYTES)
@pytest.mark.parametrize("group_size", [None, 16])
@pytest.mark.parametrize("sizes", [(0, 1, 0, 2, 0, 0), (3, 0, 4, 1, 0, 5)], ids=["few", "many"])
@pytest.mark.quick_one_in(4)
def test_each_row_has_the_narrow_weight_of_its_expert(how, group_size, sizes):
    wide = Linear.Config(in_dim=64, out_dim=12, axes=("embed", "mlp"), has_bias=True)
    narrow = QuantizedLinear.Config(
        in_dim=64, out_dim=12, axes=wide.axes, has_bias=True, format=how, group_size=group_size
    )
    state = Stacked.Config(linear=wide, num_experts=6).build().init(1)
    state["expert"]["bias"] = jax.random.normal(jax.random.key(3), (6, 12))
    module = Stacked.Config(linear=narrow, num_experts=6).build()
    kept = quantize_weights(module.param_specs(), state)
    rows = jax.random.normal(jax.random.key(2), (sum(sizes), 64))
    call = lambda kept: functional(module, kept, rows, jnp.asarray(sizes, jnp.int32))[0]  # noqa: E731
    found = call(kept)
    makes_all_wide = "f32[6,64,12]" in str(jax.make_jaxpr(call)(kept))
    assert makes_all_wide == (sum(sizes) >= 6)
    layer, one = narrow.build(), []
    for row, expert in zip(rows, np.repeat(np.arange(6), sizes), strict=True):
        own = jax.tree.map(lambda leaf: leaf[expert], kept["expert"])  # noqa: B023 - used at once
        one.append(functional(layer, own, row[None])[0][0])
    np.testing.assert_allclose(found, np.stack(one), atol=1e-5)


def test_a_column_of_zeros_stays_zero():
    for how in BYTES:
        values, scale = quantized_weight(jnp.zeros((8, 3)), how)
        wide = full_precision_weight(unpacked_int4(values) if how == "int4" else values, scale)
        assert not np.asarray(wide).any()


def test_an_odd_number_of_rows_is_refused_in_int4():
    cfg = QuantizedLinear.Config(in_dim=7, out_dim=3, axes=(None, None), format="int4")
    with pytest.raises(ConfigError, match="in_dim is 7; two numbers of int4 share a byte"):
        cfg.build()


SIZES = {"in_dim": 64, "out_dim": 100, "axes": ("embed", "mlp")}
LAYERS = {
    "panels": (PackedLinear.Config(**SIZES), 1e-6),
    "panels16": (PackedLinear.Config(**SIZES, dtypes=DTypes(param="bfloat16")), 1 / 128),
    "int8": (QuantizedLinear.Config(**SIZES), 1 / 127),
    "int4": (QuantizedLinear.Config(**SIZES, format="int4", group_size=32), 1 / 7),
    "int8_panels": (PackedQuantizedLinear.Config(**SIZES), 1 / 127),
    "int4_panels": (PackedQuantizedLinear.Config(**SIZES, format="int4", group_size=16), 1 / 7),
    "float8": (QuantizedLinear.Config(**SIZES, format="float8_e4m3fn"), 1 / 16),
}


def test_every_form_has_an_array_that_no_other_has():
    head = QuantizedHead.Config(dim=64, vocab_size=100)
    every = [*(cfg for cfg, _ in LAYERS.values()), head]
    known = [set(FORMS) & set(cfg.build().param_specs()) for cfg in every]
    assert [len(names) for names in known] == [1] * len(every)
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
