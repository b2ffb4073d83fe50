"""What axl-gpu brings: its generations, how they are recognised, its mesh rule and its check."""

from itertools import pairwise

import jax
import pytest
from axl_gpu.compiler import transfers_under_products
from axl_gpu.detect import cuda_finding, detect, present
from axl_gpu.hardware import hosts

from axcore.plugins import Hardware, MeshRule, find_mesh_rule, plugin_host, wanted_compiler_options


def test_plugin_loads():
    plugin = plugin_host().plugin("axl-gpu")
    assert plugin.trouble == ""
    assert set(plugin.hooks) == {
        "aot_targets",
        "compiler_options",
        "doctor_checks",
        "features",
        "hardware_families",
        "kernels",
        "mesh_rules",
    }


@pytest.mark.parametrize(
    ("kind", "generation"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H200 MIG 1g.18gb", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_gpu_is_recognised_by_its_whole_name(kind, generation):
    assert detect("gpu", kind) == generation
    assert detect("cpu", kind) is None


def test_every_generation_can_be_recognised():
    from axl_gpu.detect import _GENERATIONS

    assert set(_GENERATIONS.values()) == {host.generation for host in hosts()}


@pytest.mark.parametrize("host", hosts(), ids=lambda host: host.name)
def test_figures_hang_together(host):
    flops = host.peak_flops
    assert flops["bfloat16"] == flops["float16"] == pytest.approx(2 * flops["tensorfloat32"])
    assert flops["int8"] == pytest.approx(2 * flops["bfloat16"], rel=1e-3)
    assert flops["float32"] < flops["tensorfloat32"]
    assert host.memory_bandwidth > host.interconnect_bandwidth > host.network_bandwidth
    assert {"bfloat16", "memory", "interconnect", "network"} <= set(host.achievable_fraction)


def test_generations_grow():
    ordered = [host for host in hosts() if host.generation != "a100-40gb"]
    for older, newer in pairwise(ordered):
        assert newer.memory_bytes >= older.memory_bytes
        assert newer.memory_bandwidth > older.memory_bandwidth
        assert newer.peak_flops["bfloat16"] >= older.peak_flops["bfloat16"]


@pytest.mark.parametrize("target", ["gpu-h100-1", "gpu-h100-256", "gpu-unknown-3"])
def test_every_gpu_has_a_mesh_rule(target):
    generation, number = target.split("-")[1:]
    hardware = Hardware(family="gpu", generation=generation, chips=int(number))
    rule = find_mesh_rule(hardware, brought=plugin_host().records(MeshRule))
    assert (rule.plugin, rule.mesh) == ("axl-gpu", {"fsdp": -1})


@pytest.mark.parametrize(
    ("installed", "level", "text"),
    [
        ({"jax": "0.10.2"}, "warning", "JAX's CUDA plugin is not: JAX will not see any GPU"),
        ({"jax-cuda13-pjrt": "0.10.2"}, "ok", "jax-cuda13-pjrt 0.10.2"),
        (
            {"jax-cuda12-pjrt": "0.10.2", "jax-cuda13-pjrt": "0.10.2"},
            "error",
            "jax-cuda12-pjrt 0.10.2 and jax-cuda13-pjrt 0.10.2 are both installed",
        ),
    ],
)
def test_doctor_judges_the_cuda_packages(installed, level, text):
    found = cuda_finding(installed)
    assert found.level == level
    assert text in found.text


@pytest.mark.parametrize(
    ("platforms", "expected"), [(None, True), ("cuda,cpu", True), ("gpu", True), ("cpu", False)]
)
def test_gpus_are_expected_where_there_is_a_driver_and_jax_may_use_it(
    tmp_path, platforms, expected
):
    environment = {} if platforms is None else {"JAX_PLATFORMS": platforms}
    driver = tmp_path / "version"
    assert not present(environment, driver)
    driver.write_text("NVRM version: 580.0")
    assert present(environment, driver) is expected


def test_transfers_run_under_products_on_gpus_only():
    option = "xla_gpu_enable_latency_hiding_scheduler"
    unknown = Hardware(family="gpu", generation="unknown")
    for hardware in (Hardware.parse("gpu-h100-8"), unknown):
        assert wanted_compiler_options(hardware)[option] is True
    assert option not in wanted_compiler_options(Hardware.parse("tpu-v5e-4"))


def test_xla_of_the_installed_jax_knows_every_option():
    options = dict(wanted_compiler_options(Hardware.parse("gpu-h100-8")))
    compiled = jax.jit(lambda x: x + 1).lower(1.0).compile(compiler_options=options)
    assert compiled(1.0) == 2.0


@pytest.mark.parametrize(
    ("jaxlib", "option", "value"),
    [
        ("0.11.0", "xla_gpu_enable_pipelined_all_gather", True),
        ("0.11.1", "xla_gpu_pipeline_all_gather", "COLLECTIVE_PIPELINING_MODE_ON"),
        ("0.12.0.1", "xla_gpu_pipeline_all_gather", "COLLECTIVE_PIPELINING_MODE_ON"),
        ("0.13.0.dev20261126", "xla_gpu_pipeline_all_gather", "COLLECTIVE_PIPELINING_MODE_ON"),
    ],
)
def test_options_have_the_names_of_the_xla_that_compiles(jaxlib, option, value):
    options = transfers_under_products(Hardware.parse("gpu-h100-8"), jaxlib=jaxlib)
    assert options[option] == value
    assert len(options) == 4
