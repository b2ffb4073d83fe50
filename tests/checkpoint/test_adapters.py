"""Adapters are saved without their base, and work when they are put on it again."""

import json

import jax
import numpy as np
import pytest
from numpy_state import numpy_state

from axcore.checkpoint import load_adapters, save_adapters
from axcore.config import replace_config
from axcore.errors import CheckpointError, ConfigError
from axcore.layers import FeedForward, PlainFeedForward, adapters_of, without_lora
from axcore.models import transformer
from axcore.modifiers import LoRA
from axcore.plugins import Hardware


@pytest.fixture(scope="module")
def cfg():
    plain = transformer(vocab_size=8, dim=4, num_layers=2, num_heads=2, hidden_dim=6)
    lora = LoRA(rank=3, alpha=5.0, targets=("**.attention.**",))
    return lora.apply(plain, Hardware.parse("cpu-1"))


@pytest.fixture(scope="module")
def base(cfg):
    return jax.device_put(numpy_state(without_lora(cfg).build().param_specs()))


@pytest.fixture
def folder(cfg, saved_state, tmp_path):
    save_adapters(tmp_path / "adapters", cfg, saved_state)
    return tmp_path / "adapters"


@pytest.fixture(scope="module")
def saved_state(cfg):
    state = numpy_state(cfg.build().param_specs())
    return jax.device_put(jax.tree.map(lambda x: x + 1, state))


def test_what_was_saved_is_loaded_beside_any_base(cfg, base, saved_state, folder):
    loaded_cfg, loaded = load_adapters(folder, without_lora(cfg), base)
    assert loaded_cfg == cfg
    module = cfg.build()
    jax.tree.map(
        np.testing.assert_array_equal, adapters_of(module, loaded), adapters_of(module, saved_state)
    )
    place = ("decoder", "stack", "layer", "attention", "q", "base", "weight")
    there, before = loaded, base
    for step in place:
        there, before = there[step], before if step == "base" else before[step]
    assert there is before


def test_files_hold_adapters_only(folder, saved_state):
    assert {path.name for path in folder.iterdir()} == {"adapters.json", "adapters.safetensors"}
    size = (folder / "adapters.safetensors").stat().st_size
    num_adapter = 2 * 4 * (4 * 3 + 3 * 4)  # layers, projections, factors
    assert size < 4 * num_adapter + 2000


def test_a_config_without_adapters_is_an_error(cfg, base, tmp_path):
    with pytest.raises(ConfigError, match="has no adapters to save"):
        save_adapters(tmp_path, without_lora(cfg), base)


def test_another_model_is_an_error_that_names_the_places(cfg, base, folder):
    other = replace_config(
        without_lora(cfg), FeedForward, PlainFeedForward.Config(), at="**.feed_forward"
    ).decoder.stack.layer.feed_forward
    with pytest.raises(CheckpointError, match="the model has no linear layer there") as error:
        load_adapters(folder, other, base)
    assert "decoder.stack.layer.attention.linear" in error.value.what


def test_missing_and_damaged_files_are_errors(cfg, base, folder):
    plain = without_lora(cfg)
    with pytest.raises(CheckpointError, match=r"there is no adapters.json in"):
        load_adapters(folder / "nowhere", plain, base)
    arrays, description = folder / "adapters.safetensors", folder / "adapters.json"
    whole = arrays.read_bytes()
    arrays.write_bytes(whole[:100])
    with pytest.raises(CheckpointError, match="the arrays cannot be read"):
        load_adapters(folder, plain, base)
    arrays.write_bytes(whole)
    content = json.loads(description.read_text())
    description.write_text(json.dumps({**content, "format": 9}))
    with pytest.raises(CheckpointError, match="adapters of format 9; this version reads format 1"):
        load_adapters(folder, plain, base)
    description.write_text("{")
    with pytest.raises(CheckpointError, match="does not describe adapters"):
        load_adapters(folder, plain, base)
