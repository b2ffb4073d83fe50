"""Runs, and steps of a run, are merged as the models are that they can be written as."""

import jax
import numpy as np
import pytest
from click.testing import CliRunner

import axcore as ax
from axcore.cli.main import group
from axcore.errors import CheckpointError
from axcore.runs import export_run, import_run, load_run, merge_models_and_runs
from axcore.testing import small_experiment, trainer_on


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("merged")
    settings = {"mesh": {"fsdp": 1}, "checkpoint.every_steps": 1, "**.peak": 0.1}
    cfg = ax.update_config(small_experiment(folder / "texts"), settings)
    trainer_on(cfg, 1).run(folder / "run", quiet=True)
    return folder / "run"


@pytest.mark.slow
def test_steps_of_a_run_are_averaged(run, tmp_path):
    words = ["merge", "linear", f"{run}@1", str(run), "--to", str(tmp_path / "mean")]
    ran = CliRunner().invoke(group, words)
    assert ran.exit_code == 0, ran.output
    found = import_run(tmp_path / "mean", tmp_path / "again").state
    first, last = (load_run(run, step=step).state for step in (1, 2))
    mean = jax.tree.map(lambda a, b: (np.asarray(a) + np.asarray(b)) / 2, first, last)
    assert not all(map(np.array_equal, jax.tree.leaves(first), jax.tree.leaves(last)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, mean)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.slow
def test_a_run_is_merged_with_a_published_model(run, tmp_path):
    export_run(load_run(run), tmp_path / "one")
    models = [str(run), str(tmp_path / "one")]
    merge_models_and_runs(models, tmp_path / "same", method="slerp", weights=[0.3, 0.7])
    name = "model.safetensors"
    from safetensors.numpy import load_file

    found, wanted = (load_file(tmp_path / at / name) for at in ("same", "one"))
    assert found.keys() == wanted.keys()
    for tensor in found:
        np.testing.assert_allclose(found[tensor], wanted[tensor], atol=1e-6)


def test_a_step_that_there_is_not_is_an_error_and_leaves_nothing(run, tmp_path):
    with pytest.raises(CheckpointError, match="7"):
        merge_models_and_runs([f"{run}@7", str(run)], tmp_path / "mean", method="linear")
    with pytest.raises(CheckpointError, match="runs/NAME@STEP"):
        merge_models_and_runs([f"{run}@last", str(run)], tmp_path / "mean", method="linear")
    assert list(tmp_path.iterdir()) == []
