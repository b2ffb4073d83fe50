"""Axes that nothing uses, and products that hardware cannot compute, are refused at the start."""

import attrs
import pytest

from axcore.config import evolve, find_config, update_config
from axcore.errors import ConfigError, KernelError, PluginError, ShardingError
from axcore.experiments import llama2_7b
from axcore.layers import Dot, Fp8Delayed, Int8Dynamic
from axcore.modifiers import with_changes
from axcore.parallel import ACTIVATION_RULES, PARAM_RULES
from axcore.plugins import Hardware, QuantizationScheme, plugin_host
from axcore.testing import trainer_on
from axcore.testing.tiny import small_experiment
from axcore.trainer import resolve
from axcore.trainer.checks import check_quantization_schemes


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
        _build(
            update_config(small_config, {"mesh": {"seq": 8}, "sharding.activation_rules": rules})
        )


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
            r"logical axis 'tiem', which is not a usual one[\s\S]*did you mean 'time'\?",
        ),
        ("activation_rules", {"time": ("sqe",)}, r"'time' names the mesh axis 'sqe'[\s\S]*seq"),
    ],
)
def test_rules_with_a_misspelt_name_are_refused(small_config, field, rules, text):
    usual = {"param_rules": PARAM_RULES, "activation_rules": ACTIVATION_RULES}[field]
    changes = {"mesh": {"fsdp": 8}, f"sharding.{field}": {**usual, **rules}}
    cfg = update_config(small_config, changes)
    with pytest.raises(ShardingError, match=text) as error:
        _build(cfg)
    assert error.value.where == f"sharding.{field}"


def test_a_layer_may_have_an_axis_of_its_own(small_config):
    rules = {**ACTIVATION_RULES, "pixels": ("seq",)}
    assert (
        _build(
            update_config(small_config, {"mesh": {"fsdp": 8}, "sharding.activation_rules": rules})
        ).mesh.size
        == 8
    )


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


@pytest.fixture
def experiment(tmp_path):
    return small_experiment(tmp_path)


@pytest.mark.parametrize(
    ("scheme", "target", "reason"),
    [
        ("fp8_current", "tpu-v5e-8", "wants float8, which tpu-v5e-8 does not have"),
        ("fp8_delayed", "gpu-a100-8", "wants float8, which gpu-a100-8 does not have"),
        ("fp8_current", "cpu-1", "wants float8, which cpu-1 does not have"),
        ("int8_dynamic", "trainium-trn2-16", "wants int8, which trainium-trn2-16 does not have"),
    ],
)
def test_scheme_is_refused_with_its_layers_and_the_reason(experiment, scheme, target, reason):
    cfg = with_changes(experiment, [scheme])
    with pytest.raises(KernelError, match=reason) as error:
        check_quantization_schemes(cfg, Hardware.parse(target))
    message = str(error.value)
    assert message.startswith(f"{scheme} computes model.decoder.stack.layer.attention.linear.dot")
    pinned = update_config(cfg, {"kernels.pins": {"quantized_dot": "emulated"}})
    check_quantization_schemes(pinned, Hardware.parse(target))


@pytest.mark.parametrize(
    ("scheme", "target"),
    [("fp8_delayed", "gpu-h100-8"), ("int8_dynamic", "tpu-v5e-8"), ("int8_dynamic", "cpu-1")],
)
def test_scheme_is_let_through_where_it_runs(experiment, scheme, target):
    check_quantization_schemes(with_changes(experiment, [scheme]), Hardware.parse(target))


def test_schemes_in_rules_for_other_hardware_are_none_of_this_one():
    check_quantization_schemes(llama2_7b(), Hardware.parse("tpu-v5p-8"))


def test_scheme_is_asked_for_by_name_with_values(experiment):
    cfg = with_changes(experiment, ["fp8_delayed(history=3)"])
    dots = [found.node for found in find_config(cfg, Dot)]
    assert dots
    assert set(dots) == {Fp8Delayed.Config(history=3)}
    with pytest.raises(ConfigError, match=r"Int8Dynamic.Config takes the place of nothing"):
        with_changes(cfg, ["int8_dynamic"])
    with pytest.raises(PluginError, match=r"there is no change 'fp8_delaid'; .*fp8_delayed"):
        with_changes(experiment, ["fp8_delaid"])


def test_every_scheme_of_the_core_computes_experts_too():
    schemes = plugin_host().records(QuantizationScheme)
    of_core = [one.config.resolve() for one in schemes if one.plugin == "core"]
    modules = [type(cfg().build()) for cfg in of_core]
    assert Int8Dynamic in modules
    for module in modules:
        assert issubclass(module, Dot)
        assert module.grouped is not Dot.grouped
