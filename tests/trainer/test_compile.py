"""Compiled steps that one attempt of a launch keeps for the next."""

import sys

import jax
import pytest

from axcore.config import evolve
from axcore.plugins import Hardware
from axcore.trainer import KeptSteps, Trainer, resolve
from axcore.trainer.run_directory.run_history import read_run_history


@pytest.fixture
def trainer(toy_config, tmp_path):
    """Makes a trainer that keeps its step, for a config with changes."""
    devices = jax.devices()[:1]
    hardware = Hardware.detect(devices)

    def make(**changes):
        resolved = resolve(evolve(toy_config, **changes), hardware)
        return Trainer(resolved, devices=devices, kept_steps=KeptSteps(tmp_path))

    return make


def was_traced(trainer):
    _ = trainer.compiler.compiled_step
    return "lowered_step" in vars(trainer.compiler)


def is_kept(run):
    (start,) = read_run_history(run / "run_history.jsonl")
    return start["is_step_kept"]


@pytest.mark.slow
def test_a_kept_step_is_not_traced_again_and_gives_the_same_bits(trainer, tmp_path, same_bits):
    made, found = trainer(max_steps=5), trainer(max_steps=5)
    whole = made.run(tmp_path / "made")
    again = found.run(tmp_path / "found")
    assert [is_kept(tmp_path / name) for name in ("made", "found")] == [False, True]
    assert not was_traced(found)
    assert same_bits(whole.state, again.state)
    assert found.kernel_plan() == made.kernel_plan()


def test_a_step_is_kept_for_its_config_alone(trainer):
    assert was_traced(trainer())
    assert was_traced(trainer(seed=1))
    assert not was_traced(trainer(seed=1))


def test_a_step_is_made_again_where_a_file_of_python_has_changed(trainer, tmp_path, monkeypatch):
    file = tmp_path / "own_layers.py"
    file.write_text("scale = 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "own_layers", __import__("own_layers"))
    assert was_traced(trainer())
    assert not was_traced(trainer())
    file.write_text("scale = 10.0\n")
    assert was_traced(trainer())


def test_a_step_that_cannot_be_kept_is_compiled_with_a_warning(toy_config, tmp_path):
    devices = jax.devices()[:1]
    resolved = resolve(toy_config, Hardware.detect(devices))
    gone = Trainer(resolved, devices=devices, kept_steps=KeptSteps(tmp_path / "gone"))
    with pytest.warns(UserWarning, match="the compiled step is not kept: FileNotFoundError"):
        assert was_traced(gone)


def test_a_damaged_step_is_made_again_and_the_damage_named(trainer, tmp_path):
    assert was_traced(trainer())
    (kept,) = (path for path in tmp_path.iterdir() if path.is_file())
    kept.write_bytes(kept.read_bytes()[:1000])
    with pytest.warns(UserWarning, match="the kept step is made again: .*truncated"):
        assert was_traced(trainer())
    assert not was_traced(trainer())
