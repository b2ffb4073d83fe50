"""A quantization scheme on hardware that cannot run it is an error before anything is built."""

import pytest

from axcore.config import evolve, find_config
from axcore.errors import ConfigError, KernelError, PluginError
from axcore.experiments import llama2_7b
from axcore.layers import Dot, Fp8Delayed, Int8Dynamic
from axcore.modifiers import with_changes
from axcore.plugins import Hardware, QuantizationScheme, plugin_host
from axcore.testing.tiny import small_experiment
from axcore.trainer.quantization_checks import check_quantization_schemes


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
    pinned = evolve(cfg, kernels={"quantized_dot": "emulated"})
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
