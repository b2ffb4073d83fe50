"""Compiling for GPUs you do not have: their descriptions, and a step really compiled."""

import attrs
import pytest
from axl_gpu.compiler import target_config, topology
from axl_gpu.hardware import hosts

from axcore.aot.cost.measure import measure
from axcore.aot.targets import find_aot_target
from axcore.config import evolve, update_config
from axcore.errors import PluginError
from axcore.module import DTypes
from axcore.plugins import Hardware
from axcore.testing import small_experiment
from axcore.trainer import resolve


@pytest.mark.parametrize("host", hosts(), ids=lambda host: host.generation)
def test_every_generation_is_described(host):
    text = target_config(host)
    assert text.count("{") == text.count("}")
    size = int(text.split("device_memory_size: ")[1].split()[0])
    assert 0.9 * host.memory_bytes < size <= host.memory_bytes


def test_hosts_are_told_apart():
    assert topology(Hardware.parse("gpu-h100-8")) == "1x1x8"
    assert topology(Hardware.parse("gpu-h100-256")) == "1x32x8"


def test_generations_that_are_not_described_are_an_error():
    unknown = attrs.evolve(Hardware.parse("gpu-h100-8"), generation="x900")
    with pytest.raises(PluginError, match="there is no description of 'x900'"):
        target_config(unknown)


@pytest.mark.compile("gpu-h100-8")
def test_a_step_for_a_host_of_gpus_is_reported(tmp_path):
    hardware = Hardware.parse("gpu-h100-8")
    cfg = update_config(
        small_experiment(tmp_path),
        {"model.dim": 512, "**.hidden_dim": 1024, "**.num_heads": 8, "**.num_kv_heads": 8},
    )
    cfg = evolve(cfg, model=evolve(cfg.model, dtypes=DTypes(compute="bfloat16")))
    report = measure(resolve(cfg, hardware), find_aot_target(hardware), experiment="small")
    assert report.fits
    assert report.time.source == "roofline"
    assert report.time.step_s > 0
    assert any(line.startswith("attention: cudnn_attention") for line in report.kernels)
    assert report.time.kernels_s > 0
    assert {one.kind for one in report.collectives} >= {"all-gather"}
    flops = {one.module: one.flops for one in report.modules}
    tokens = cfg.data.batch_size * cfg.data.seq_len / 8
    products = sum(n for name, n in flops.items() if "feed_forward" in name)
    assert products == pytest.approx(3 * 3 * 2 * tokens * 512 * 1024 * 2, rel=0.05)
