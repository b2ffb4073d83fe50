"""Experiments by name and from files, and `axcore experiments`: the list, and models' sizes."""

import json

import pytest

from axcore.cli.main import main
from axcore.config import find_config
from axcore.errors import PluginError
from axcore.experiments.named import load_experiment, load_resolved
from axcore.layers import Int8Dynamic, TransformerLayer
from axcore.modifiers.remat import REMAT_PRESETS
from axcore.plugins import Hardware


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["experiments", *arguments])
    assert ended.value.code == 0


def test_sizes_are_counted_where_they_are_asked_for(capsys):
    run("--sizes", "--json")
    sizes = {row["name"]: row["parameters"] for row in json.loads(capsys.readouterr().out)}
    assert sizes["llama2-70b"] == 68_976_648_192
    assert sizes["mixtral-8x7b"] == 46_702_792_704
    run("--json")
    assert not any("parameters" in row for row in json.loads(capsys.readouterr().out))


def test_table_writes_sizes_with_commas(capsys):
    run("--sizes")
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "PLUGIN", "PARAMETERS", "SUMMARY"]
    assert any(row.startswith("llama3-8b") and "8,030,261,248" in row for row in rows)


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
