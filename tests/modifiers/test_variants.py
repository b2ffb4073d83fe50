"""Replacing layers by variants that plugins bring."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

from axcore.config import find_config, from_json, replace_config, to_json, update_config
from axcore.errors import ConfigError, PluginError
from axcore.experiments.tiny import tiny
from axcore.layers import FeedForward, LayerNorm, PreNorm, ScannedLayers, Stack
from axcore.models import qwen2
from axcore.modifiers import with_changes, with_variant
from axcore.module import functional
from axcore.plugins import Hardware, LayerVariant, Ref


def test_unknown_variant_says_what_there_is():
    with pytest.raises(PluginError, match="no plugin brings a layer variant 'zebra'; known: "):
        with_variant(FeedForward.Config(), "zebra")


def test_misspelt_variant_says_what_is_near():
    with pytest.raises(PluginError, match="did you mean 'sliding_window'"):
        with_variant(FeedForward.Config(), "slidingwindow")


def test_variant_of_a_layer_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="DotProductAttention"):
        with_variant(FeedForward.Config(), "sliding_window")


PAGE = Path(__file__).parents[2] / "docs" / "plugins" / "README.md"
EXAMPLE = PAGE.read_text().split("## A variant of several classes")[1]
PLUGIN, LAYERS, *_ = re.findall(r"^```python\n(.*?)^```$", EXAMPLE, re.MULTILINE | re.DOTALL)
"""The plugin on the page: static hyper-connections."""

SMALL = {"dim": 32, "vocab_size": 64, "**.num_layers": 2, "**.hidden_dim": 32, "**.unroll": 1}
TOKENS = jax.random.randint(jax.random.key(0), (2, 8), 0, 64)
FAMILIES = {"tiny": lambda: tiny().model, "qwen2": lambda: qwen2("toy")}


@pytest.fixture
def hyper(make_dist):
    make_dist("axl-hyper", PLUGIN, files={"layers.py": LAYERS})


@pytest.fixture(params=FAMILIES)
def plain(request, hyper):
    return update_config(FAMILIES[request.param](), SMALL)


def trained(cfg):
    """Returns the first logits, and those after steps down the slope of their mean square."""
    model = cfg.build()

    def loss(state):
        logits = functional(model, state, TOKENS, method="logits")[0]
        return jax.numpy.mean(logits**2), logits

    run = jax.jit(jax.value_and_grad(loss, has_aux=True))
    states = [model.init(0)]
    for _ in range(3):
        gradient = run(states[-1])[1]
        states.append(jax.tree.map(lambda x, slope: x - 0.1 * slope, states[-1], gradient))
    return run(states[0])[0][1], run(states[-1])[0][1]


def test_hyper_connections_begin_as_the_plain_residual_and_train_otherwise(plain):
    first, last = trained(with_variant(plain, "hyper_connections", num_streams=2))
    plain_first, plain_last = trained(plain)
    np.testing.assert_allclose(first, plain_first, atol=1e-5)
    assert np.abs(last - plain_last).max() > 1e-3


def test_both_classes_are_replaced_and_keep_their_fields(plain):
    plain = update_config(plain, {"**.residual.dropout.rate": 0.25})
    changed = with_variant(plain, "hyper_connections")
    assert not find_config(changed, PreNorm)
    wide, stack = changed.decoder.stack, changed.decoder.stack.stack
    assert type(wide).__qualname__ == "WideLayers.Config"
    assert (type(stack), stack.num_layers) == (ScannedLayers.Config, 2)
    assert stack.layer.residual.dropout.rate == 0.25
    assert from_json(to_json(changed)) == changed


def test_a_value_is_for_every_config_that_has_the_field(hyper):
    wide = with_changes(tiny(), ["hyper_connections(num_streams=3)"]).model.decoder.stack
    assert (wide.num_streams, wide.stack.layer.residual.num_streams) == (3, 3)
    norm = LayerNorm.Config()
    wide = with_variant(tiny(), "hyper_connections", norm=norm).model.decoder.stack
    assert (wide.num_streams, wide.stack.layer.residual.norm) == (2, norm)


@pytest.mark.parametrize(
    "change",
    [
        lambda: with_variant(tiny(), "hyper_connections", streams=3),
        lambda: with_changes(tiny(), ["hyper_connections(streams=3)"]),
    ],
)
def test_a_field_that_none_of_the_configs_has_is_refused(hyper, change):
    with pytest.raises(ConfigError, match="'hyper_connections' has no field 'streams'") as raised:
        change()
    assert raised.value.hint == "did you mean 'num_streams'?"


def test_the_other_changes_of_a_run_apply_to_it(hyper):
    mesh = "mesh_shape(mesh={'data': -1, 'fsdp': 2})"
    changes = ["hyper_connections", "query_key_norm", "int8_training", mesh]
    cfg = update_config(tiny(), {"data.batch_size": 16})
    cfg = with_changes(cfg, changes, Hardware.parse("cpu-1"))
    assert cfg.build().kernel_plan().choices


def test_where_one_class_is_missing_nothing_is_replaced_and_the_error_names_it(hyper):
    unrolled = replace_config(tiny(), ScannedLayers, Stack.Config())
    with pytest.raises(ConfigError) as raised:
        with_variant(unrolled, "hyper_connections")
    assert raised.value.what == (
        "layer variant 'hyper_connections' of plugin 'axl-hyper' replaces PreNorm and "
        "ScannedLayers together, and there is no ScannedLayers in Trainer.Config; nothing was "
        "replaced"
    )
    assert raised.value.hint.startswith("give it a config that contains a ScannedLayers")


@pytest.mark.parametrize("before", ["sandwich_norm", "hyper_connections"])
def test_a_variant_that_took_a_class_before_is_named(hyper, before):
    with pytest.raises(ConfigError, match="there is no PreNorm in Trainer") as raised:
        with_changes(tiny(), [before, "hyper_connections"])
    assert "(hyper_connections, sandwich_norm), leave one of the two out" in raised.value.hint


def test_a_node_of_two_of_the_classes_is_refused(make_dist):
    plugin = PLUGIN.replace("axcore.layers:ScannedLayers", "axcore.layers:Residual")
    make_dist("axl-hyper", plugin, files={"layers.py": LAYERS})
    with pytest.raises(PluginError, match="is both") as raised:
        with_variant(tiny(), "hyper_connections")
    assert raised.value.hint == "replace classes of which none is derived from another"


CONFIG = Ref("axl_hyper.layers:layers")


@pytest.mark.parametrize(
    "fields",
    [
        {"replaces": {}},
        {"replaces": CONFIG},
        {"replaces": {"axcore.layers:PreNorm": CONFIG}, "config": CONFIG},
        {"replaces": {"axcore.layers:PreNorm": "axl_hyper.layers:layers"}},
        {"replaces": {"PreNorm": CONFIG}},
        {"replaces": "axcore.layers:PreNorm", "config": CONFIG},
    ],
)
def test_record_without_one_config_for_each_class_is_refused(fields):
    with pytest.raises(PluginError, match=r"LayerVariant|Ref target is 'PreNorm'"):
        LayerVariant(name="odd", summary="Odd", **fields)


@pytest.mark.slow
def test_suites_prove_it_like_a_variant_of_one_class(cli, hyper):
    ran = cli("plugin", "check", "axl-hyper")
    assert ran.exit_code == 0, ran.stdout
    assert " skipped" not in ran.stdout
