"""Config maps: no field of `config.json` is ignored, and no model is described as another."""

import pytest

from axcore.config import evolve, replace_config, update_config
from axcore.errors import ConfigError
from axcore.experiments.tiny import tiny
from axcore.interop import family_named, family_of
from axcore.layers import ScannedLayers, Stack
from axcore.models import llama2, mistral, qwen2
from axcore.modifiers import Int8Training, LoRA, RematModifier
from axcore.module import DTypes
from axcore.plugins import Hardware

LLAMA = family_named("llama")
TOY = LLAMA.write(llama2("toy"))


def test_an_unknown_field_is_an_error_that_names_all_of_them():
    with pytest.raises(ConfigError, match="2 fields") as caught:
        LLAMA.read({**TOY, "logit_scale": 0.5, "residual_multiplier": 2.0, "use_cache": True})
    assert "logit_scale=0.5" in str(caught.value)
    assert "residual_multiplier=2.0" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [("hidden_act", "swish2"), ("rope_scaling", {"rope_type": "warp", "factor": 2.0})],
)
def test_a_value_that_no_layer_has_is_an_error(field, value):
    with pytest.raises(ConfigError, match=r"swish2|warp"):
        LLAMA.read({**TOY, field: value})


def test_a_field_that_asks_for_what_qwen2_here_lacks_is_an_error():
    fields = family_named("qwen2").write(qwen2("toy"))
    with pytest.raises(ConfigError, match="use_sliding_window=True"):
        family_named("qwen2").read({**fields, "use_sliding_window": True})


def test_a_layer_of_another_type_is_an_error():
    fields = family_named("qwen2").write(qwen2("toy"))
    full = {**fields, "layer_types": ["full_attention"] * 2}
    assert family_named("qwen2").read(full) == family_named("qwen2").read(fields)
    with pytest.raises(ConfigError, match="layer_types='sliding_attention'"):
        family_named("qwen2").read(
            {**fields, "layer_types": ["full_attention", "sliding_attention"]}
        )


@pytest.mark.parametrize("field", ["rms_norm_eps", "rope_theta", "hidden_size", "vocab_size"])
@pytest.mark.parametrize("value", [None, "many"])
def test_a_number_that_is_none_is_an_error_that_names_it(field, value):
    with pytest.raises(ConfigError) as caught:
        LLAMA.read({**TOY, field: value})
    axcore = {"hidden_size": "dim"}
    assert axcore.get(field, field) in str(caught.value)


def test_a_missing_size_is_an_error():
    fields = {name: value for name, value in TOY.items() if name != "hidden_size"}
    with pytest.raises(ConfigError, match="no hidden_size"):
        LLAMA.read(fields)


def test_positions_mean_the_same_in_the_old_and_the_new_form():
    old = {**TOY, "rope_theta": 500.0}
    new = {name: value for name, value in TOY.items() if name != "rope_theta"}
    new["rope_parameters"] = {"rope_theta": 500.0, "rope_type": "default"}
    assert LLAMA.read(old) == LLAMA.read(new) != LLAMA.read(TOY)


def test_unknown_fields_of_positions_are_an_error():
    with pytest.raises(ConfigError, match="strange_section"):
        LLAMA.read({**TOY, "rope_parameters": {"rope_theta": 1e4, "strange_section": [1]}})


CPU = Hardware.parse("cpu-1")
TRAINED = {
    "dtypes": lambda cfg: update_config(cfg, {"model.dtypes": DTypes(compute="bfloat16")}),
    "remat": lambda cfg: RematModifier(policy="full").apply(cfg, CPU),
    "dropout": lambda cfg: update_config(cfg, {"**.dropout.rate": 0.1}),
    "int8": lambda cfg: Int8Training().apply(cfg, CPU),
    "unrolled": lambda cfg: replace_config(
        cfg, ScannedLayers, lambda old: Stack.Config(num_layers=2, layer=old.layer)
    ),
}


@pytest.mark.parametrize("change", TRAINED)
def test_how_a_model_is_trained_does_not_change_its_description(change):
    plain = evolve(tiny(), model=llama2("toy"))
    changed = TRAINED[change](plain)
    assert changed.model != plain.model
    assert family_of(changed.model)[2] == TOY


@pytest.mark.parametrize(
    "change",
    [
        lambda cfg: update_config(cfg, {"head.soft_cap": 30.0}),
        lambda cfg: update_config(cfg, {"**.core.scale": 0.5}),
        lambda cfg: update_config(cfg, {"**.norm.weight_offset": 1.0}),
        lambda cfg: update_config(cfg, {"decoder.norm.epsilon": 0.5}),
        lambda cfg: update_config(cfg, {"**.core.is_causal": False}),
        lambda cfg: LoRA(rank=2).apply(evolve(tiny(), model=cfg), CPU).model,
    ],
)
def test_a_model_that_no_family_has_is_an_error(change):
    with pytest.raises(ConfigError, match="no family of pretrained checkpoints has such a model"):
        family_of(change(llama2("toy")))


def test_a_window_makes_it_a_mistral():
    assert family_of(mistral("7b"))[0] == "mistral"
    assert family_of(update_config(mistral("7b"), {"**.core.window": None}))[0] == "llama"


def test_an_unknown_type_of_model_is_an_error_that_says_what_is_near():
    with pytest.raises(ConfigError, match="did you mean 'qwen2'"):
        family_named("qwen2x")


def test_a_field_of_positions_that_changes_nothing_is_named():
    scaling = {"rope_type": "default", "partial_rotary_factor": 1.0, "factor": None}
    with pytest.warns(UserWarning, match=r"are ignored: partial_rotary_factor=1\.0$"):
        cfg = LLAMA.read({**TOY, "rope_scaling": scaling})
    assert cfg == LLAMA.read(TOY)


def test_positions_that_change_with_the_row_are_refused_with_what_to_do_for_shorter_rows():
    scaling = {"type": "dynamic", "factor": 2.0}
    with pytest.raises(ConfigError, match="type 'dynamic'") as caught:
        LLAMA.read({**TOY, "rope_scaling": scaling})
    assert "rope_scaling: null" in str(caught.value)
    assert "install axl" not in str(caught.value)
