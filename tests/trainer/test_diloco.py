"""Slices that train on their own, in the trainer: on a mesh, over a resume, and by name."""

import math
import re

import jax
import numpy as np
import pytest

from axcore.aot.hlo.collectives import first_group
from axcore.config import evolve, update_config
from axcore.errors import ConfigError
from axcore.learner import DiLoCo
from axcore.modifiers import DiLoCoModifier
from axcore.plugins import Hardware
from axcore.testing.tiny import trainer_on

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
HARDWARE = Hardware.parse("cpu-8")


@pytest.fixture(scope="module")
def cfg(small_config):
    changes = {"max_steps": 6, "eval_every_steps": 6, "mesh": {"data": 4, "fsdp": 2}}
    return DiLoCoModifier(sync_every=2).apply(update_config(small_config, changes), HARDWARE)


def test_groups_are_the_parts_of_the_mesh_axis_data(cfg):
    assert isinstance(cfg.learner, DiLoCo.Config)
    assert (cfg.learner.num_groups, cfg.learner.sync_every) == (4, 2)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [{"data": 4, "fsdp": 2}, {"data": 2, "model": 4}, {"data": 4}])
def test_slices_compute_what_one_device_does(cfg, mesh, tmp_path):
    count = math.prod(mesh.values())
    split = trainer_on(evolve(cfg, mesh=mesh), count).run(tmp_path / "split", quiet=True)
    alone = trainer_on(evolve(cfg, mesh={"fsdp": 1}), 1).run(tmp_path / "alone", quiet=True)
    for one, other in zip(*map(jax.tree.leaves, (split.state, alone.state)), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-4)


def test_only_numbers_cross_slices_between_meetings(cfg):
    program = trainer_on(cfg, 8).compiler.compiled_step.as_text()
    crossing, computation = {}, ""
    for line in program.splitlines():
        if line.endswith("{") and not line.startswith(" "):
            computation = line.split("(")[0]
        name = next((one for one in COLLECTIVES if f" {one}(" in line), None)
        # Devices 0 and 1 are the first slice.
        if name and len({one // 2 for one in first_group(line, 8)}) > 1:
            crossing.setdefault(computation, []).extend(sizes(line.split(f" {name}(")[0]))
    largest = sorted(max(found) for found in crossing.values())
    # All parameters, in the branch where slices meet; counts and norms of groups elsewhere.
    assert largest[-1] > 1000
    assert len(largest) > 1
    assert max(largest[:-1]) <= 8


def sizes(shapes):
    """Returns the number of elements of each array of `(f32[2,3]{1,0}, pred[])`."""
    return [
        math.prod(int(one) for one in dims.split(",") if one)
        for dims in re.findall(r"\w\[([\d,]*)\]", shapes)
    ]


@pytest.mark.slow
def test_a_run_that_stops_between_meetings_resumes_to_the_same_bits(cfg, tmp_path, same_bits):
    one = evolve(cfg, mesh={"fsdp": 1}, checkpoint=evolve(cfg.checkpoint, every_steps=3))
    trainer = trainer_on(one, 1)
    whole = trainer.run(tmp_path / "whole", quiet=True)
    trainer.run(tmp_path / "run", quiet=True)
    for path in (tmp_path / "run/checkpoints").glob("step_00000006*"):
        path.rename(path.with_name("gone"))
    resumed = trainer.run(tmp_path / "run", quiet=True, from_step=3)
    assert same_bits(resumed.state, whole.state)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"mesh": {"fsdp": -1}}, "DiLoCo has one group"),
        ({"logging.gradient_norms_every_steps": 1}, "gradient norms by module"),
    ],
)
def test_what_does_not_fit_is_named(small_config, changes, what):
    given = update_config(small_config, {"mesh": {"data": -1}, **changes})
    with pytest.raises(ConfigError, match=what):
        DiLoCoModifier().apply(given, HARDWARE)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"learner.num_groups": 2}, "2 groups do not divide over 4 parts"),
        ({"mesh": {"data": 2, "fsdp": 2, "model": 2}}, "has the axes fsdp, model"),
    ],
)
def test_meshes_that_do_not_fit_are_refused(cfg, tmp_path, changes, what):
    with pytest.raises(ConfigError, match=what):
        trainer_on(update_config(cfg, changes), 8).run(tmp_path, quiet=True)
