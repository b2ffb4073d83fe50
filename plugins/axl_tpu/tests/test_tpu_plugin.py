"""What axl-tpu brings: its generations, how they are recognised, its mesh rule and its check."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from axl_tpu.detect import detect, libtpu_finding, present
from axl_tpu.hardware import hosts
from axl_tpu.sdc_checker import repeated_programs

from axcore.errors import ConfigError
from axcore.plugins import (
    Hardware,
    MeshRule,
    find_mesh_rule,
    plugin_host,
    wanted_compiler_options,
)

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


def test_plugin_loads():
    plugin = plugin_host().plugin("axl-tpu")
    assert plugin.trouble == ""
    assert set(plugin.hooks) == {
        "aot_targets",
        "compiler_options",
        "doctor_checks",
        "hardware_families",
        "kernels",
        "mesh_rules",
    }


@pytest.mark.parametrize(
    ("kind", "generation"),
    [
        ("TPU v4", "v4"),
        ("TPU v5 lite", "v5e"),
        ("TPU v5", "v5p"),
        ("TPU v5p", "v5p"),
        ("TPU v6 lite", "v6e"),
        ("TPU7x", "7x"),
        ("TPU v3", None),
    ],
)
def test_tpu_is_recognised_by_its_kind(kind, generation):
    assert detect("tpu", kind) == generation
    assert detect("cpu", kind) is None


@pytest.mark.parametrize(
    ("name", "chips", "num_devices", "num_hosts"),
    [
        ("tpu-v4-8", 4, 4, 1),
        ("tpu-v5p-512", 256, 256, 64),
        ("tpu-v5e-256", 256, 256, 64),
        ("tpu-v6e-1", 1, 1, 1),
        ("tpu-7x-128", 64, 128, 16),
    ],
)
def test_names_count_what_google_counts(name, chips, num_devices, num_hosts):
    hardware = Hardware.parse(name)
    assert hardware.name == name
    got = (hardware.chips, hardware.num_devices, hardware.num_hosts)
    assert got == (chips, num_devices, num_hosts)


def test_two_devices_of_a_chip_are_detected_as_one():
    device = {"platform": "tpu", "device_kind": "TPU7x"}
    devices = [SimpleNamespace(**device, process_index=index // 8) for index in range(128)]
    assert Hardware.detect(devices) == Hardware.parse("tpu-7x-128")


@pytest.mark.parametrize("host", hosts(), ids=lambda host: host.name)
def test_figures_hang_together(host):
    assert host.memory_bandwidth > host.interconnect_bandwidth
    for dtype in ("int8", "float8"):
        assert host.peak_flops.get(dtype, 4e15) >= host.peak_flops["bfloat16"]


@pytest.mark.parametrize("target", ["tpu-v5e-1", "tpu-v5p-512"])
def test_every_tpu_has_a_mesh_rule(target):
    rule = find_mesh_rule(Hardware.parse(target), brought=plugin_host().records(MeshRule))
    assert (rule.plugin, rule.mesh) == ("axl-tpu", {"fsdp": -1})


def test_doctor_says_whether_libtpu_is_there():
    assert libtpu_finding("0.0.42").text == "libtpu 0.0.42"
    assert "JAX will not see any TPU" in libtpu_finding(None).text


@pytest.mark.parametrize(
    ("platforms", "expected"), [(None, True), ("tpu,cpu", True), ("cpu", False)]
)
def test_tpus_are_expected_where_one_is_on_the_bus_and_jax_may_use_it(
    tmp_path, platforms, expected
):
    environment = {} if platforms is None else {"JAX_PLATFORMS": platforms}
    network, chip = tmp_path / "0000:00:04.0", tmp_path / "0000:00:05.0"
    for function, device in ((network, "0x0042"), (chip, "0x0063")):
        assert not present(environment, tmp_path)
        function.mkdir()
        (function / "vendor").write_text("0x1ae0\n")
        (function / "device").write_text(f"{device}\n")
    assert present(environment, tmp_path) is expected


@pytest.mark.parametrize("name", ["tpu_kernels", "tpu_products"])
def test_shares_of_the_peak_are_those_that_the_benchmarks_found(name):
    recorded = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["figures"]
    for host in hosts():
        found = recorded.get(f"tpu-{host.generation}-8", {}).get("share_of_peak", {})
        assert found.items() <= dict(host.achievable_fraction).items()


def test_programs_are_not_repeated_unless_a_variable_asks_for_it(monkeypatch):
    hardware = Hardware.parse("tpu-v5e-8")
    assert not [name for name in wanted_compiler_options(hardware) if "sdc" in name]
    monkeypatch.setenv("AXL_TPU_SDC_REPEATS", "2")
    options = wanted_compiler_options(hardware)
    assert options["xla_tpu_enable_sdc_checker"] is True
    assert options["xla_tpu_sdc_check_repeat_count"] == 2
    assert options["xla_tpu_sdc_replicate_llo"] is True
    assert (
        wanted_compiler_options(Hardware.parse("tpu-v5p-8"))["xla_tpu_sdc_replicate_llo"] is False
    )


@pytest.mark.parametrize("value", ["0", "-1", "yes"])
def test_a_number_of_repeats_that_is_none_is_refused(monkeypatch, value):
    monkeypatch.setenv("AXL_TPU_SDC_REPEATS", value)
    with pytest.raises(ConfigError, match=f"AXL_TPU_SDC_REPEATS is '{value}'"):
        repeated_programs(Hardware.parse("tpu-v5e-8"))
