"""Axes that a config names and nothing uses are refused before anything runs."""

import attrs
import pytest

from axcore.config import evolve, update_config
from axcore.errors import ShardingError
from axcore.parallel import ACTIVATION_RULES, PARAM_RULES
from axcore.plugins import Hardware
from axcore.testing import trainer_on
from axcore.trainer import resolve


def _build(cfg, num_devices=8):
    return trainer_on(cfg, num_devices)


@pytest.mark.parametrize(
    ("mesh", "text"),
    [
        ({"pipeline": 2, "data": 4}, r"mesh axis pipeline of size 2 splits neither[\s\S]*Pipeline"),
        ({"data": 3, "fsdp": -1}, r"needs 3 devices or a multiple; there are 8"),
        ({"fspd": 8}, r"no mesh axis is named 'fspd'[\s\S]*fsdp"),
        ({"fsdp": 8, "model": 2}, r"mesh fsdp 8 x model 2 needs 16 devices; there are 8"),
    ],
)
def test_meshes_that_do_not_work_are_refused(small_config, mesh, text):
    with pytest.raises(ShardingError, match=text):
        _build(evolve(small_config, mesh=mesh))


def test_an_axis_without_its_rule_splits_nothing(small_config):
    rules = {**ACTIVATION_RULES, "time": ()}
    with pytest.raises(ShardingError, match=r"mesh axis seq of size 8[\s\S]*activation_rules"):
        _build(evolve(small_config, mesh={"seq": 8}, activation_rules=rules))


@pytest.mark.parametrize(
    ("field", "rules", "text"),
    [
        ("param_rules", {"embde": ("fsdp",)}, r"logical axis 'embde', which no parameter has"),
        (
            "param_rules",
            {"embed": ("fdsp",)},
            r"'embed' names the mesh axis 'fdsp', which does not",
        ),
        (
            "activation_rules",
            {"tiem": ("seq",)},
            r"logical axis 'tiem', which is no usual one[\s\S]*did you mean 'time'\?",
        ),
        ("activation_rules", {"time": ("sqe",)}, r"'time' names the mesh axis 'sqe'[\s\S]*seq"),
    ],
)
def test_rules_with_a_misspelt_name_are_refused(small_config, field, rules, text):
    usual = {"param_rules": PARAM_RULES, "activation_rules": ACTIVATION_RULES}[field]
    cfg = evolve(small_config, mesh={"fsdp": 8}, **{field: {**usual, **rules}})
    with pytest.raises(ShardingError, match=text) as error:
        _build(cfg)
    assert error.value.where == field


def test_a_layer_may_have_an_axis_of_its_own(small_config):
    rules = {**ACTIVATION_RULES, "pixels": ("seq",)}
    assert _build(evolve(small_config, mesh={"fsdp": 8}, activation_rules=rules)).mesh.size == 8


def test_data_goes_through_slices_where_a_rule_says_nothing_of_them(small_config):
    slices = attrs.evolve(Hardware.parse("cpu-8"), slices=2, links_hosts=True)
    resolved = resolve(evolve(small_config, mesh=None), slices)
    assert resolved.config.slices == {"data": 2}
    own = resolve(evolve(small_config, mesh=None, slices={"pipeline": 2}), slices)
    assert own.config.slices == {"pipeline": 2}


def test_slices_are_a_part_of_the_mesh(small_config):
    trainer = _build(evolve(small_config, mesh={"fsdp": -1}, slices={"data": 2}))
    assert trainer.describe_mesh() == "data 2 x fsdp 4"
    with pytest.raises(ShardingError, match="slices data 3 are 3, which do not divide 8 devices"):
        _build(update_config(small_config, {"mesh": {"fsdp": -1}, "slices": {"data": 3}}))
