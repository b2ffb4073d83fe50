"""Loading an experiment: what the user asks for is done last, so that no mesh rule undoes it."""

import pytest

from axcore.cli.experiment import load_experiment, load_resolved
from axcore.config import find_config
from axcore.errors import PluginError
from axcore.layers import Int8Dynamic, TransformerLayer
from axcore.modifiers.remat import REMAT_PRESETS
from axcore.plugins import Hardware

V5E = Hardware.parse("tpu-v5e-256")


def remats(cfg):
    return {layer.node.remat for layer in find_config(cfg, TransformerLayer)}


def test_mesh_rule_is_applied_and_told_of():
    resolved = load_resolved("llama2-7b", hardware=V5E)
    assert remats(resolved.config) == {REMAT_PRESETS["full"]}
    assert "+ mesh: {'fsdp': -1}" in resolved.mesh_rule_diff()
    assert "Int8Dynamic" in resolved.mesh_rule_diff()


def test_without_hardware_no_rule_is_applied():
    cfg = load_experiment("llama2-7b")
    assert (remats(cfg), cfg.mesh) == ({None}, None)


def test_modifier_of_the_user_wins_over_the_mesh_rule():
    changes = ("remat(policy=minimal)",)
    cfg = load_resolved("llama2-7b", changes=changes, hardware=V5E).config
    assert remats(cfg) == {REMAT_PRESETS["minimal"]}


def test_override_wins_over_both():
    cfg = load_resolved(
        "llama2-7b",
        ("**.layer.remat=none", "num_micro_batches=8"),
        changes=("remat(policy=minimal)", "accumulate"),
        hardware=V5E,
    ).config
    assert (remats(cfg), cfg.num_micro_batches) == ({None}, 8)


def test_mesh_of_the_user_leaves_what_else_the_rule_says():
    cfg = load_resolved("llama2-7b", ("mesh={'data': 4, 'fsdp': -1}",), hardware=V5E).config
    assert cfg.mesh == {"data": 4, "fsdp": -1}
    assert find_config(cfg, Int8Dynamic)


def test_mesh_rule_reaches_the_layers_of_a_variant():
    changes = ("sliding_window(window=9)",)
    cfg = load_resolved("llama2-7b", changes=changes, hardware=V5E).config
    assert remats(cfg) == {REMAT_PRESETS["full"]}
    assert cfg.model.decoder.stack.layer.attention.core.window == 9


def test_hardware_without_a_rule_needs_a_mesh_and_says_so():
    zork = Hardware(family="zork", chips=4)
    with pytest.raises(PluginError, match="no mesh rule matches zork-4") as error:
        load_resolved("tiny", hardware=zork)
    assert error.value.hint.startswith("--set \"mesh={'fsdp': -1}\"")
    resolved = load_resolved("tiny", ("mesh={'fsdp': -1}",), hardware=zork)
    assert resolved.config.mesh == {"fsdp": -1}
