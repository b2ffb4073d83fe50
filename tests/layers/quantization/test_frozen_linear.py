"""Frozen weights in few bits: published levels, half a level of error, adapters on them."""

from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state
from rounding import assert_same_to_rounding

from axcore.config import evolve, replace_config
from axcore.errors import ConfigError
from axcore.interop import HuggingFace, to_hugging_face
from axcore.layers import (
    FeedForward,
    FrozenLinear,
    MoE,
    adapters_of,
    frozen_state,
    full_precision_state,
    merge_adapters,
    new_adapters,
    with_adapters,
    with_full_precision_weights,
    without_lora,
)
from axcore.layers.quantization import nf4
from axcore.layers.quantization.frozen_linear import FrozenForm
from axcore.models import llama2, transformer
from axcore.modifiers import LoRA, Pretrained, QuantizedBase
from axcore.module import functional
from axcore.plugins import Hardware
from axcore.testing.tiny import small_experiment
from axcore.trainer.step import TrainStep

CPU = Hardware.parse("cpu-1")
FORMS = {
    "nf4": FrozenForm(),
    "double": FrozenForm(double_quant=True),
    "int8": FrozenForm("int8"),
}
TOKENS = jnp.arange(16, dtype=jnp.int32).reshape(2, 8)


def drawn(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def wide(form, kept):
    return np.asarray(FORMS[form].dequantized({n: jnp.asarray(one) for n, one in kept.items()}))


def dense():
    return transformer(vocab_size=32, dim=8, num_layers=2, num_heads=2, hidden_dim=12)


def sparse():
    return replace_config(
        dense(), FeedForward, lambda ffn: MoE.Config(expert=ffn, num_experts=2, top_k=1)
    )


def frozen(cfg, **fields):
    return QuantizedBase(**fields).apply(LoRA(rank=2).apply(cfg, CPU), CPU)


def test_levels_are_quantiles_of_a_normal_distribution():
    """Half of them below zero and half above, each from one tail to the middle, as published."""
    tail = (1 - 1 / 32 + 1 - 1 / 30) / 2
    quantile = NormalDist().inv_cdf
    above = [quantile(p) for p in np.linspace(tail, 0.5, 9)[:-1]]
    below = [-quantile(p) for p in np.linspace(tail, 0.5, 8)[:-1]]
    levels = np.array(sorted([*above, 0.0, *below])) / above[0]
    np.testing.assert_allclose(nf4.LEVELS, levels, atol=2e-7)


def test_levels_of_scales_are_a_dynamic_tree_of_eight_bits():
    levels = nf4.scale_levels()
    assert len(levels) == 256
    assert levels == tuple(sorted(set(levels)))
    assert (levels[-1], levels[-2]) == (1.0, pytest.approx(1 - 0.9 / 128))
    assert -levels[0] == levels[-2]
    smallest = min(level for level in levels if level > 0)
    assert smallest == pytest.approx(0.55e-6)


def test_each_number_of_nf4_is_the_level_nearest_to_it_in_its_block():
    weight = drawn((128, 3))
    kept = FORMS["nf4"].kept(weight)
    assert kept["weight_codes"].shape == (64, 3)
    blocks = weight.reshape(2, 64, 3)
    largest = np.abs(blocks).max(1)
    np.testing.assert_array_equal(kept["weight_scale"], largest)
    distance = np.abs(blocks[..., None] / largest[:, None, :, None] - np.array(nf4.LEVELS))
    expected = np.array(nf4.LEVELS, np.float32)[distance.argmin(-1)] * largest[:, None]
    np.testing.assert_allclose(wide("nf4", kept), expected.reshape(128, 3), rtol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_numpy_and_jax_keep_the_same_numbers_and_lose_little(form):
    weight = drawn((192, 100))
    kept, again = FORMS[form].kept(weight), jax.jit(FORMS[form].kept)(jnp.asarray(weight))
    for name, array in kept.items():
        assert array.dtype == again[name].dtype
        is_same = np.isclose(array, np.asarray(again[name]), rtol=1e-5, atol=0)
        assert np.mean(~is_same) < 2e-3, name
    error = np.asarray(wide(form, kept)) - weight
    assert np.sqrt(np.mean(error**2)) < {"nf4": 0.1, "double": 0.1, "int8": 0.01}[form]


def test_scales_in_eight_bits_are_near_those_in_32():
    scales = np.abs(drawn((40, 30))) + 1
    made = nf4.dequantized_scales(*map(jnp.asarray, nf4.quantized_scales(scales)))
    assert 0 < np.abs(np.asarray(made) - scales).max() < 0.03


@pytest.mark.parametrize("model", [dense, sparse])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.slow
def test_new_adapters_change_nothing_of_a_frozen_model_and_trained_ones_merge(model, form):
    adapted = LoRA(rank=2).apply(model(), CPU)
    fields = {"format": FORMS[form].format, "double_quant": FORMS[form].double_quant}
    cfg = QuantizedBase(**fields, block_size=4).apply(adapted, CPU)
    base_cfg, module = without_lora(cfg), cfg.build()
    base = base_cfg.build()
    wide_state = jax.tree.map(jnp.asarray, numpy_state(model().build().param_specs()))
    base_state = frozen_state(base, wide_state)
    adapters = new_adapters(module, 1)
    logits = jax.jit(lambda m, s: functional(m, s, TOKENS, method="logits")[0], static_argnums=0)
    state = with_adapters(module, base_state, adapters)
    expected = logits(base, base_state)
    assert_same_to_rounding(logits(module, state), expected)
    assert np.abs(np.asarray(expected) - logits(model().build(), wide_state)).max() > 1e-3

    trained = {name: one + 0.1 * drawn(one.shape, len(name)) for name, one in adapters.items()}
    state = with_adapters(module, base_state, trained)
    plain_cfg, plain_state = with_full_precision_weights(cfg), full_precision_state(cfg, state)
    merged = merge_adapters(plain_cfg.build(), plain_state)
    np.testing.assert_allclose(
        logits(without_lora(plain_cfg).build(), merged), logits(module, state), atol=2e-5
    )


@pytest.mark.slow
def test_training_moves_adapters_and_no_bit_of_a_frozen_base(tmp_path):
    cfg = small_experiment(tmp_path)
    cfg = frozen(evolve(cfg, model=dense()))
    step = TrainStep(cfg.model.build(), cfg.learner.build(total_steps=9))
    before = jax.jit(step.init)()
    rows = np.arange(32, dtype=np.int32).reshape(4, 8)
    batch = {
        "tokens": rows,
        "targets": rows,
        "positions": np.broadcast_to(np.arange(8, dtype=np.int32), (4, 8)),
        "segment_ids": np.ones((4, 8), np.int32),
        "loss_weights": np.ones((4, 8), np.float32),
    }
    after = jax.jit(step)(before, batch)[0]
    moved = adapters_of(step.model, after.model)
    assert any(np.any(one != adapters_of(step.model, before.model)[n]) for n, one in moved.items())
    layer = [one.model["decoder"]["stack"]["layer"]["attention"]["q"] for one in (before, after)]
    assert layer[0]["base"]["weight_codes"].dtype == np.uint8
    jax.tree.map(np.testing.assert_array_equal, layer[0]["base"], layer[1]["base"])


@pytest.mark.slow
def test_a_new_frozen_layer_has_the_deviation_of_a_new_linear_one():
    for form in FORMS.values():
        fields = {"format": form.format, "double_quant": form.double_quant}
        layer = FrozenLinear.Config(**fields).build(in_dim=64, out_dim=512, axes=(None, None))
        weight = form.dequantized(layer.init(0))
        assert np.std(weight) == pytest.approx(1 / 8, rel=0.05)
        assert abs(np.mean(weight)) < 0.01


@pytest.mark.slow
def test_a_published_model_is_read_as_frozen_as_its_weights_are_here(tmp_path):
    plain = llama2("toy")
    state = jax.tree.map(jnp.asarray, numpy_state(plain.build().param_specs()))
    to_hugging_face(tmp_path / "base", plain, state)
    start = small_experiment(tmp_path)
    cfg = Pretrained(path=str(tmp_path / "base")).apply(evolve(start, model=plain), CPU)
    cfg = frozen(cfg, double_quant=True)
    source = cfg.init_from
    assert isinstance(source, HuggingFace.Config)
    plan = source.build().plan(cfg.model)
    assert "kept in nf4, weight_scale_mean" in plan.table()
    read = plan.read(jax.eval_shape(lambda: cfg.model.build().init(0)))
    base = without_lora(cfg.model).build()
    expected = frozen_state(base, state)["decoder"]["stack"]["layer"]["attention"]["q"]
    found = read["decoder"]["stack"]["layer"]["attention"]["q"]["base"]
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"exclude": ("**",)}, "all plain linear layers are excluded"),
        ({"format": "int8", "double_quant": True}, "double_quant is for the scales of nf4"),
        ({"block_size": 3}, "block_size is 3; expected an even number"),
    ],
)
def test_what_cannot_be_kept_so_is_an_error(fields, what):
    with pytest.raises(ConfigError, match=what):
        frozen(dense(), **fields).build()


def test_weights_that_are_trained_are_not_frozen():
    with pytest.raises(ConfigError, match="the model's linear layers are trained") as error:
        QuantizedBase().apply(dense(), CPU)
    assert "--modify lora" in str(error.value)
