"""Adapters of linear layers: they start as nothing, train alone, and fold into the base."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy_state import numpy_state
from rounding import assert_same_to_rounding

from axcore.config import evolve, find_config, replace_config
from axcore.errors import ConfigError, ModuleError
from axcore.layers import (
    Dropout,
    FeedForward,
    Linear,
    LoRALinear,
    MoE,
    adapters_of,
    merge_adapters,
    new_adapters,
    with_adapters,
    without_lora,
)
from axcore.models import transformer
from axcore.modifiers import Int8Training, LoRA
from axcore.module import ParamSpec, count_params, functional
from axcore.plugins import Hardware
from axcore.testing.tiny import small_experiment
from axcore.trainer.step import TrainStep

CPU = Hardware.parse("cpu-1")
VOCAB, ROWS, TIME = 32, 4, 8


def dense():
    return transformer(vocab_size=VOCAB, dim=8, num_layers=2, num_heads=2, hidden_dim=12)


def sparse():
    return replace_config(
        dense(), FeedForward, lambda ffn: MoE.Config(expert=ffn, num_experts=4, top_k=2)
    )


def narrow():
    return Int8Training().apply(dense(), CPU)


MODELS = {"dense": dense, "experts": sparse, "int8": narrow}
KINDS = {
    "lora": {},
    "rank-stabilised": {"use_rslora": True},
    "dora": {"use_dora": True},
}


def adapted(cfg, **fields):
    return LoRA(rank=2, **fields).apply(cfg, CPU)


@functools.cache
def compiled_logits(module):
    tokens = np.random.default_rng(0).integers(0, VOCAB, (2, TIME)).astype(np.int32)
    return jax.jit(lambda state: functional(module, state, jnp.asarray(tokens), method="logits")[0])


def logits(module, state):
    return np.asarray(compiled_logits(module)(state))


def noisy(adapters):
    draw = np.random.default_rng(1)
    return {k: v + 0.3 * draw.normal(size=v.shape).astype(v.dtype) for k, v in adapters.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.slow
def test_new_adapters_change_nothing_and_trained_ones_fold_into_the_base(model, kind):
    """int8 rounds the merged weight again, so there the two are close only."""
    base_cfg = MODELS[model]()
    cfg = adapted(base_cfg, **KINDS[kind])
    assert without_lora(cfg) == base_cfg
    base, module = base_cfg.build(), cfg.build()
    base_state = numpy_state(base.param_specs())
    fresh = new_adapters(module, 1)
    state = with_adapters(module, base_state, fresh)
    expected = logits(base, base_state)
    assert_same_to_rounding(logits(module, state), expected)

    state = with_adapters(module, base_state, noisy(fresh))
    corrected = logits(module, state)
    correction = np.abs(corrected - expected).mean()
    assert correction > 0.1
    error = np.abs(logits(base, merge_adapters(module, state)) - corrected).mean()
    assert error < correction * (0.2 if model == "int8" else 1e-5)
    assert adapters_of(module, state).keys() == fresh.keys()
    assert any("magnitude" in name for name in fresh) == (kind == "dora")


def layer_of(**fields):
    """A layer of 3 inputs and 2 outputs with adapters of rank 2, and its state."""
    cfg = LoRALinear.Config(base=Linear.Config(), rank=2, alpha=3.0, **fields)
    layer = cfg.build(in_dim=3, out_dim=2, axes=(None, None))
    return layer, jax.tree.map(jnp.asarray, numpy_state(layer.param_specs()))


def weights_of(state):
    return (np.asarray(state[name]["weight"]) for name in ("base", "lora_down", "lora_up"))


def test_rank_stabilised_corrections_are_divided_by_the_root_of_the_rank():
    layer, state = layer_of(use_rslora=True)
    weight, down, up = weights_of(state)
    x = np.ones((4, 3), np.float32)
    y, _ = functional(layer, state, jnp.asarray(x))
    expected = x @ (weight + 3.0 / np.sqrt(2.0) * down @ up)
    np.testing.assert_allclose(y, expected, rtol=1e-5)


def test_columns_have_the_length_that_dora_says_and_lora_their_direction():
    layer, state = layer_of(use_dora=True)
    weight, down, up = weights_of(state)
    y, _ = functional(layer, state, jnp.eye(3))
    made, change = np.asarray(y), np.asarray(state["lora_magnitude"]["change"])
    corrected = weight + 1.5 * down @ up
    lengths = np.linalg.norm(weight, axis=0) + change
    np.testing.assert_allclose(np.linalg.norm(made, axis=0), np.abs(lengths), rtol=1e-5)
    directions = corrected / np.linalg.norm(corrected, axis=0)
    np.testing.assert_allclose(made / lengths, directions, rtol=1e-4)


def test_dora_corrects_what_dropout_leaves_of_the_input():
    layer, state = layer_of(use_dora=True, dropout=Dropout.Config(rate=0.5))
    x = jnp.ones((64, 3))
    call = functools.partial(functional, layer, state, x, rng=0)
    y, _ = call(training=True)
    difference = np.asarray(y) - np.asarray(functional(layer.base, state["base"], x)[0])
    is_whole_input_dropped = np.all(difference == 0, axis=1)
    assert 0 < is_whole_input_dropped.sum() < 32  # 1/8 of the rows on average


def test_adapters_are_small_and_named_by_their_path():
    module = adapted(dense()).build()
    adapters = jax.eval_shape(lambda: adapters_of(module, module.init(0)))
    up = adapters["decoder.stack.layer.attention.q.lora_up.weight"]
    assert up.shape == (2, 2, 8)  # layers, rank, width
    assert sum(leaf.size for leaf in adapters.values()) < 0.5 * count_params(
        dense().build().param_specs()
    )


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A step with adapters, and its first state."""
    cfg = small_experiment(tmp_path_factory.mktemp("text"))
    cfg = LoRA(rank=2).apply(evolve(cfg, model=sparse()), CPU)
    step = TrainStep(cfg.model.build(), cfg.learner.build(total_steps=9))
    return step, jax.jit(step.init)()


def after_two_steps(step, before):
    draw = np.random.default_rng(0)
    batch = {
        "tokens": draw.integers(0, VOCAB, (ROWS, TIME)).astype(np.int32),
        "targets": draw.integers(0, VOCAB, (ROWS, TIME)).astype(np.int32),
        "positions": np.broadcast_to(np.arange(TIME, dtype=np.int32), (ROWS, TIME)),
        "segment_ids": np.ones((ROWS, TIME), np.int32),
        "loss_weights": np.ones((ROWS, TIME), np.float32),
    }
    run = jax.jit(step)
    return jax.device_get(run(run(before, batch)[0], batch)[0])


@pytest.mark.slow
def test_training_moves_adapters_and_no_bit_of_anything_else(fresh):
    step, before = fresh
    after = after_two_steps(step, before)
    names = adapters_of(step.model, before.model).keys()
    specs = jax.tree.leaves(step.specs, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))
    leaves = zip(jax.tree.leaves(before.model), jax.tree.leaves(after.model), strict=True)
    for spec, (old, new) in zip(specs, leaves, strict=True):
        assert spec.is_frozen == (spec.name not in names)
        assert np.array_equal(old, new) == spec.is_frozen, spec.name


@pytest.mark.slow
def test_optimizer_keeps_state_of_adapters_only(fresh):
    step, before = fresh
    adapters = adapters_of(step.model, before.model)
    for moment in ("mu", "nu"):
        kept = jax.tree.leaves(optax.tree.get(before.opt_state, moment))
        assert sorted(leaf.shape for leaf in kept) == sorted(a.shape for a in adapters.values())


# -- Where adapters go ------------------------------------------------------------------------


def _places(cfg):
    return [found.path for found in find_config(cfg, LoRALinear)]


@pytest.mark.parametrize(
    ("fields", "places"),
    [
        ({"targets": ("**.attention",)}, ["attention.linear", "attention.out_linear"]),
        ({"targets": ("**.out_linear",)}, ["attention.out_linear"]),
        (
            {"exclude": ("**.attention.**", "**.router.**")},
            ["feed_forward.expert.linear"],
        ),
    ],
)
def test_targets_are_layers_or_what_holds_them(fields, places):
    found = _places(adapted(sparse(), **fields))
    assert found == [f"decoder.stack.layer.{place}" for place in places]


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"targets": ("decoder.norm",)}, "decoder.norm is a RMSNorm, which is not a linear layer"),
        ({"targets": ("**.atention",)}, r"'\*\*.atention' matches nothing"),
        ({"exclude": ("**.nothing",)}, "which matches no linear layer"),
        ({"exclude": ("**",)}, "all 3 linear layers are excluded"),
    ],
)
def test_targets_that_are_no_linear_layers_are_errors(fields, what):
    with pytest.raises(ConfigError, match=what) as error:
        adapted(dense(), **fields)
    assert error.value.hint


def test_applied_twice_is_an_error():
    with pytest.raises(ConfigError, match="has an adapter already; LoRA was applied twice"):
        adapted(adapted(dense()))


def test_rank_below_one_is_an_error():
    with pytest.raises(ConfigError, match="rank is 0; expected 1 or more"):
        LoRA(rank=0).apply(dense(), CPU).build()


def test_adapters_of_another_model_are_an_error():
    module, state = adapted(dense()).build(), {}
    abstract = jax.eval_shape(lambda: adapters_of(module, module.init(0)))
    adapters = {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in abstract.items()}
    lacking = dict(list(adapters.items())[1:])
    with pytest.raises(ModuleError, match=r"the adapters lack 'decoder.stack.layer.attention"):
        with_adapters(module, state, lacking)
    thick = LoRA(rank=3).apply(dense(), CPU).build()
    with pytest.raises(ModuleError, match=r"has shape \(2, 8, 2\); the model's has \(2, 8, 3\)"):
        with_adapters(thick, state, adapters)
