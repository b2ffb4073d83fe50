"""What axl-trainium brings: its generations, how they are recognised, its mesh rules, its check."""

import pytest
from axl_trainium.doctor import neuron_finding, nki_finding
from axl_trainium.hardware import detect, hosts, present

from axcore.plugins import Hardware, MeshRule, find_mesh_rule, plugin_host, wanted_flags


def test_plugin_loads():
    plugin = plugin_host().plugin("axl-trainium")
    assert plugin.trouble == ""
    assert set(plugin.hooks) == {
        "aot_targets",
        "doctor_checks",
        "environment_flags",
        "features",
        "hardware_families",
        "kernels",
        "mesh_rules",
    }


@pytest.mark.parametrize(
    ("kind", "generation"),
    [("NC_v2", "trn1"), ("NC_v3", "trn2"), ("NC_v3d", "trn2"), ("NC_v1", None)],
)
def test_neuron_device_is_recognised_by_the_version_of_its_core(kind, generation):
    assert detect("neuron", kind) == generation
    assert detect("tpu", kind) is None


@pytest.mark.parametrize(
    ("name", "num_devices", "num_hosts"),
    [("trainium-trn1-32", 64, 2), ("trainium-trn2-16", 64, 1), ("trainium-trn2-1024", 4096, 64)],
)
def test_names_count_chips_whose_cores_are_devices(name, num_devices, num_hosts):
    hardware = Hardware.parse(name)
    assert (hardware.num_devices, hardware.num_hosts) == (num_devices, num_hosts)


@pytest.mark.parametrize("host", hosts(), ids=lambda host: host.name)
def test_figures_hang_together(host):
    flops = host.peak_flops
    assert flops["float8"] >= flops["bfloat16"] == flops["float16"] > flops["float32"]


@pytest.mark.parametrize(("generation", "model"), [("trn1", 2), ("trn2", 4)])
def test_layers_are_split_over_the_devices_of_a_chip(generation, model):
    hardware = Hardware.parse(f"trainium-{generation}-16")
    rule = find_mesh_rule(hardware, brought=plugin_host().records(MeshRule))
    assert rule.mesh == {"fsdp": -1, "model": model}
    assert hardware.devices_per_chip == model


@pytest.mark.parametrize(
    ("runtime", "jax", "level", "text"),
    [
        (None, "0.10.0", "warning", "JAX will not see any Trainium"),
        ("2.2", "0.10.2", "error", "jax is 0.10.2; Neuron supports at most 0.10.0"),
        ("2.2", "0.10.0", "ok", "libneuronxla 2.2, jax 0.10.0"),
    ],
)
def test_doctor_judges_runtime_and_jax(runtime, jax, level, text):
    found = neuron_finding(runtime, jax)
    assert found.level == level
    assert text in found.text


def test_doctor_says_what_becomes_of_kernels_without_nki():
    assert nki_finding(has_nki=True).level == "ok"
    assert "kernels pinned by nki_* names are refused" in nki_finding(has_nki=False).text


@pytest.mark.parametrize(
    ("platforms", "expected"), [(None, True), ("neuron,cpu", True), ("cpu", False)]
)
def test_trainium_is_expected_where_there_is_a_driver_and_jax_may_use_it(
    tmp_path, platforms, expected
):
    environment = {} if platforms is None else {"JAX_PLATFORMS": platforms}
    driver = tmp_path / "neuron0"
    assert not present(environment, driver)
    driver.touch()
    assert present(environment, driver) is expected


def test_neurons_compiler_is_told_what_it_compiles():
    texts = [wanted.text for wanted in wanted_flags(Hardware.parse("trainium-trn2-16"))]
    assert texts == ["--model-type=transformer", "--distribution-strategy=llm-training"]
    assert not set(texts) & {one.text for one in wanted_flags(Hardware.parse("tpu-v5e-4"))}
