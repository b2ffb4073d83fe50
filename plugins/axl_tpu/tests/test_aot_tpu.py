"""Compiling for slices of TPUs: their names, and a step that libtpu really compiles."""

import itertools
import math

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_tpu.compiler import environment, slice_shape, topology_name, topology_options, wide_fusions
from jax.sharding import SingleDeviceSharding

from axcore.aot.cost.measure import measure
from axcore.aot.hlo.loops import executions
from axcore.aot.hlo.program import parse_program
from axcore.aot.targets import compile_devices, find_aot_target
from axcore.config import evolve, replace_config, update_config
from axcore.errors import PluginError
from axcore.layers import Pipeline, ScannedLayers
from axcore.module import DTypes
from axcore.parallel import make_mesh
from axcore.plugins import Hardware, wanted_compiler_options
from axcore.testing import small_experiment
from axcore.trainer import resolve


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("tpu-v5p-512", "v5p:8x8x4"),
        ("tpu-v5p-1024", "v5p:8x8x8"),
        ("tpu-v5e-256", "v5e:16x16"),
        ("tpu-v6e-8", "v6e:4x2"),
        ("tpu-v4-64", "v4:4x4x2"),
        ("tpu-7x-128", "tpu7x:4x4x4"),
        ("tpu-v5e-1", "v5e:1x1"),
    ],
)
def test_slices_have_the_names_that_libtpu_knows(target, name):
    assert topology_name(Hardware.parse(target)) == name


@pytest.mark.parametrize("chips", [1, 2, 4, 8, 64, 256, 1024])
@pytest.mark.parametrize("generation", ["v5e-", "v6e-"])
def test_slices_hold_all_chips_and_are_as_square_as_they_can_be(generation, chips):
    shape = slice_shape(Hardware.parse(f"tpu-{generation}{chips}"))
    assert math.prod(shape) == chips
    assert max(shape) <= 2 * min(shape)


def test_several_slices_have_the_shape_of_one_and_their_number():
    slices = Hardware.parse("tpu-v5e-4x256")
    assert topology_name(slices) == topology_name(Hardware.parse("tpu-v5e-256"))
    assert topology_options(slices) == {"num_slices": 4}
    assert environment(slices)["TPU_ACCELERATOR_TYPE"] == "v5e-256"


def test_numbers_of_chips_that_no_slice_has_are_an_error():
    with pytest.raises(PluginError, match="slice of tpu-v5e-12 has 12 chips") as raised:
        topology_name(Hardware.parse("tpu-v5e-12"))
    assert raised.value.hint == "name tpu-v5e-16"


def test_small_slices_and_cores_that_work_as_one_are_told():
    assert topology_options(Hardware.parse("tpu-v5e-1")) == {"chips_per_host_bounds": (1, 1, 1)}
    assert topology_options(Hardware.parse("tpu-v4-8")) == {"chip_config_name": "megacore"}
    assert topology_options(Hardware.parse("tpu-v5p-8")) == {}


def test_every_tpu_gathers_and_sums_under_products_and_multiplies_rows_as_matrices():
    for target in ("tpu-v4-8", "tpu-v5e-4", "tpu-v5p-8"):
        options = wanted_compiler_options(Hardware.parse(target))
        assert options["xla_enable_async_all_gather"] is True
        assert options["xla_enable_async_all_reduce"] is True
        assert options["xla_tpu_enable_dot_strength_reduction"] is False
    assert wanted_compiler_options(Hardware.parse("cpu-8")) == {}


def test_fusions_leave_v5p_room_to_fetch_weights_where_it_serves():
    limit, planned = "xla_tpu_scoped_vmem_limit_kib", "xla_msa_use_bundle_aware_cost_model"
    v5p, v6e = Hardware.parse("tpu-v5p-8"), Hardware.parse("tpu-v6e-8")
    step, serving = wanted_compiler_options(v5p), wanted_compiler_options(v5p, serves=True)
    assert serving[limit] < step[limit]
    assert serving[planned] is True
    assert planned not in step
    assert wanted_compiler_options(v6e, serves=True) == wanted_compiler_options(v6e)


@pytest.mark.compile("tpu-v5p-64")
def test_a_step_for_a_slice_has_a_time_and_names_its_collectives(tmp_path):
    hardware = Hardware.parse("tpu-v5p-64")
    cfg = update_config(
        small_experiment(tmp_path),
        {"model.dim": 1024, "**.hidden_dim": 4096, "**.num_heads": 8, "**.num_kv_heads": 8},
    )
    cfg = update_config(cfg, {"data.seq_len": 512, "data.batch_size": 64})
    cfg = evolve(cfg, model=evolve(cfg.model, dtypes=DTypes(compute="bfloat16")))
    cfg = update_config(cfg, {"kernels.choice": "fastest"})
    report = measure(resolve(cfg, hardware), find_aot_target(hardware), experiment="small")
    assert report.fits
    assert report.time.source == "cycles"
    assert 1e5 < report.time.cycles < 1e8
    assert report.time.kernels_s > 0
    assert any(line.startswith("attention: tpu_flash_attention") for line in report.kernels)
    assert any("feed_forward" in one.module for one in report.collectives)
    assert all(one.count > 0 and one.sent_bytes > 0 for one in report.collectives)
    assert report.memory.largest[0].module.startswith(("decoder", "head"))


@pytest.mark.compile("tpu-v5p-8")
def test_stages_and_long_rows_send_between_chips_and_keep_the_kernel(tmp_path):
    hardware = Hardware.parse("tpu-v5p-8")
    cfg = update_config(
        small_experiment(tmp_path),
        {"model.dim": 512, "**.num_heads": 4, "**.num_kv_heads": 4, "data.seq_len": 1024},
    )
    cfg = replace_config(cfg, ScannedLayers, Pipeline.Config(num_micro_batches=4))
    cfg = update_config(
        cfg,
        {
            "model": evolve(cfg.model, dtypes=DTypes(compute="bfloat16")),
            "mesh": {"pipeline": 2, "seq": 2},
            "sharding.context_parallelism": "ulysses",
            "kernels.choice": "fastest",
        },
    )
    report = measure(resolve(cfg, hardware), find_aot_target(hardware), experiment="small")
    assert report.pipelines == ("model.decoder.stack: 2 stages, 4 micro-batches: 20.0 % bubble",)
    assert any(line.startswith("attention: tpu_flash_attention") for line in report.kernels)
    assert {"collective-permute", "all-to-all"} <= {one.kind for one in report.collectives}


@pytest.mark.compile("tpu-v5e-1")
def test_what_a_refused_step_needs_counts_its_state_once(tmp_path):
    hardware = Hardware.parse("tpu-v5e-1")
    cfg = update_config(small_experiment(tmp_path), {"model.dim": 8192, "**.hidden_dim": 32768})
    report = measure(resolve(cfg, hardware), find_aot_target(hardware), experiment="small")
    memory = report.memory
    assert not report.fits
    assert "exceeds available HBM" in report.refusal
    gradients, state = memory.parameters_bytes, memory.parameters_bytes + memory.optimizer_bytes
    assert state + gradients <= memory.peak_bytes < 2 * state


def large_product(device, options):
    """Return a large product, compiled with options."""
    array = jax.ShapeDtypeStruct((8192, 8192), "bfloat16", sharding=SingleDeviceSharding(device))
    return jax.jit(jnp.matmul).lower(array, array).compile(compiler_options=options)


def estimated_cycles(compiled):
    ran = executions(parse_program(compiled.as_text()))
    return sum((one.instruction.number("estimated_cycles") or 0) * one.times for one in ran)


@pytest.mark.parametrize(
    "target",
    [pytest.param(one, marks=pytest.mark.compile(one)) for one in ("tpu-v5p-8", "tpu-v6e-8")],
)
def test_fusions_hold_more_on_the_chip_than_libtpu_lets_them_by_itself(target):
    hardware = Hardware.parse(target)
    device = compile_devices(find_aot_target(hardware), hardware)[0]
    ours, theirs = large_product(device, dict(wide_fusions(hardware))), large_product(device, {})
    assert 0 < estimated_cycles(ours) < 0.95 * estimated_cycles(theirs)


@attrs.frozen
class Chip:
    """What `make_mesh` looks at in a chip."""

    id: int
    coords: tuple[int, ...]
    platform: str = "tpu"
    device_kind: str = "TPU v5"
    process_index: int = 0
    core_on_chip: int = 0


def test_an_axis_may_take_a_part_of_a_dimension_of_the_torus():
    places = itertools.product(range(4), repeat=3)
    mesh = make_mesh({"fsdp": 32, "expert": 2}, [Chip(*one) for one in enumerate(places)])
    pairs = mesh.devices.reshape(32, 2)
    assert len({chip.id for chip in pairs.flat}) == 64
    steps = [np.abs(np.subtract(one.coords, other.coords)).sum() for one, other in pairs]
    assert set(steps) == {1}
