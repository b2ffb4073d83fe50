"""A config for some hardware: whose mesh rule holds, and that modifiers must change something."""

import pytest

from axcore.config import config, evolve, update_config
from axcore.errors import ConfigError, PluginError
from axcore.plugins import Hardware, MeshRule
from axcore.trainer import ResolvedConfig, Trainer, resolve

CPU_8 = Hardware.parse("cpu-8")


@config
class InMicroBatches:
    """Splits the batch."""

    count: int

    def apply(self, cfg, hardware):
        return evolve(cfg, num_micro_batches=self.count)


@config
class Again(InMicroBatches):
    """The same, and fine with a batch that is split already."""

    is_idempotent = True


def rule(match, *modifiers, **mesh):
    return MeshRule(match=match, mesh=mesh, modifiers=modifiers)


def test_without_rules_of_its_own_a_config_takes_the_one_of_a_plugin(toy_config):
    resolved = resolve(toy_config, CPU_8)
    assert resolved.config == evolve(toy_config, mesh={"fsdp": -1})
    (mesh,) = resolved.changes
    assert mesh.origin == "mesh rule 'cpu-*' of core"
    assert str(mesh.change) == "- mesh: None\n+ mesh: {'fsdp': -1}"
    assert resolved.mesh_rule_diff() == f"{mesh.change}\n"
    assert resolved.mesh_rule_changes() == "by mesh rule 'cpu-*' of core: mesh {'fsdp': -1}\n"


def test_a_rule_of_its_own_wins_over_a_more_specific_one_and_the_first_over_later(toy_config):
    rules = (rule("gpu-*", data=-1), rule("*", model=-1), rule("cpu-8", data=-1))
    cfg = resolve(evolve(toy_config, mesh_rules=rules), CPU_8).config
    assert cfg.mesh == {"model": -1}


def test_modifiers_apply_in_order_and_the_diff_shows_what_they_changed(toy_config):
    rules = (rule("cpu-*", InMicroBatches(count=4), InMicroBatches(count=2), fsdp=-1),)
    resolved = resolve(evolve(toy_config, mesh_rules=rules), CPU_8)
    assert resolved.config.num_micro_batches == 2
    changed = "- num_micro_batches: 1\n+ num_micro_batches: 2\n"
    assert changed in resolved.mesh_rule_diff()
    rule_of = "by mesh rule 'cpu-*' of the experiment: mesh {'fsdp': -1}, and\n"
    assert resolved.mesh_rule_changes().startswith(rule_of)
    assert changed in resolved.mesh_rule_changes()


def test_a_config_with_a_mesh_of_its_own_has_no_changes_by_a_rule(toy_config):
    resolved = resolve(evolve(toy_config, mesh={"data": -1}), CPU_8)
    assert resolved.mesh_rule_changes() == ""


def test_a_modifier_that_changes_nothing_is_an_error(toy_config):
    rules = (rule("cpu-*", InMicroBatches(count=1), fsdp=-1),)
    with pytest.raises(ConfigError, match=r"InMicroBatches\(count=1\) changes nothing") as error:
        resolve(evolve(toy_config, mesh_rules=rules), CPU_8)
    assert error.value.where == "mesh rule 'cpu-*'"


def test_a_modifier_that_is_declared_idempotent_may_change_nothing(toy_config):
    rules = (rule("cpu-*", Again(count=1), fsdp=-1),)
    cfg = resolve(evolve(toy_config, mesh_rules=rules), CPU_8).config
    assert cfg.num_micro_batches == 1


def test_a_mesh_that_the_config_sets_stays(toy_config):
    rules = (rule("*", InMicroBatches(count=4), fsdp=-1),)
    cfg = evolve(toy_config, mesh={"data": 8}, mesh_rules=rules)
    assert resolve(cfg, CPU_8) == ResolvedConfig(config=cfg, hardware=CPU_8)


def test_hardware_that_no_rule_matches_is_an_error_that_shows_what_was_tried(toy_config):
    rules = (rule("acme-*", fsdp=-1),)
    hardware = Hardware(family="zork", chips=4)
    with pytest.raises(PluginError, match=r"no mesh rule matches zork-4; tried, in order: acme-\*"):
        resolve(evolve(toy_config, mesh_rules=rules), hardware)


def test_a_rule_that_can_match_nothing_is_refused_with_what_there_is(toy_config):
    rules = (rule("cpu-*", fsdp=-1), rule("tpu-v5x-*", fsdp=-1))
    with pytest.raises(PluginError, match=r"'tpu-v5x-\*' matches nothing; did you mean 'tpu-v5"):
        resolve(evolve(toy_config, mesh_rules=rules), CPU_8)


def test_a_rule_for_hardware_that_no_plugin_describes_is_left_alone(toy_config):
    rules = (rule("acme-x1-*", fsdp=-1), rule("cpu-*", data=-1))
    assert resolve(evolve(toy_config, mesh_rules=rules), CPU_8).config.mesh == {"data": -1}


def test_every_change_is_recorded_with_what_made_it_and_the_users_come_last(toy_config):
    rules = (rule("cpu-*", InMicroBatches(count=2), fsdp=-1),)
    cfg = evolve(toy_config, mesh_rules=rules)
    resolved = resolve(
        cfg,
        CPU_8,
        modify=("accumulate(factor=2)", "json_lines(folder=texts)"),
        overrides=("mesh={'data': 8}", "seed=3"),
    )
    assert (resolved.config.num_micro_batches, resolved.config.seed) == (4, 3)
    assert resolved.config.mesh == {"data": 8}
    assert [(one.origin, one.change.path) for one in resolved.changes] == [
        ("--modify json_lines(folder=texts)", "data.source"),
        ("mesh rule 'cpu-*' of the experiment", "num_micro_batches"),
        ("mesh rule 'cpu-*' of the experiment", "mesh"),
        ("--modify accumulate(factor=2)", "num_micro_batches"),
        ("--set", "seed"),
        ("--set", 'mesh["fsdp"]'),
        ("--set", 'mesh["data"]'),
    ]


def test_what_is_resolved_stays_as_it_is_when_resolved_again(toy_config):
    rules = (rule("cpu-*", InMicroBatches(count=2), fsdp=-1),)
    once = resolve(evolve(toy_config, mesh_rules=rules), CPU_8)
    assert resolve(once.config, CPU_8) == ResolvedConfig(config=once.config, hardware=CPU_8)


def test_a_trainer_refuses_a_config_that_nobody_resolved(toy_config):
    with pytest.raises(
        ConfigError, match=r"takes a ResolvedConfig, not a Trainer\.Config"
    ) as error:
        Trainer(toy_config)
    assert error.value.hint.startswith("cfg.build() resolves it")


def test_a_config_is_built_for_the_hardware_at_hand(toy_config):
    cfg = update_config(toy_config, {"data.batch_size": 16, "model.dim": 16})
    built = cfg.build()
    assert built.resolved == resolve(cfg, Hardware.detect())
    assert (built.config, built.hardware) == (built.resolved.config, built.resolved.hardware)
