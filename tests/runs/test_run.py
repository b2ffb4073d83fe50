"""`load_run`: what a run directory holds is what training returned."""

from pathlib import Path

import jax
import numpy as np
import pytest

import axcore as ax
from axcore.errors import CheckpointError
from axcore.runs.metrics import read_metrics
from axcore.testing import trainer_on
from axcore.trainer import TrainResult

Trained = tuple[Path, TrainResult]


def test_a_loaded_run_has_the_last_state_and_every_logged_step(trained: Trained) -> None:
    directory, result = trained
    run = ax.load_run(directory)
    assert run.step == result.step == 2
    jax.tree.map(np.testing.assert_array_equal, run.state, result.state.model)
    assert run.metrics["train"]["step"].tolist() == [1, 2]
    assert run.metrics["train"]["loss"].dtype == np.float64
    assert run.metrics["validation"]["loss"][-1] == result.validation["loss"]
    assert run.config.max_steps == 2


@pytest.mark.slow
def test_a_loaded_run_generates_and_evaluates(trained: Trained) -> None:
    directory, result = trained
    run = ax.load_run(directory)
    drawn = run.generate("The ", max_tokens=4)
    assert str(drawn).startswith("The ")
    assert run.generate("The ", max_tokens=4) == drawn
    np.testing.assert_allclose(run.evaluate()["loss"], result.validation["loss"], rtol=1e-5)


def test_another_step_than_the_newest_can_be_asked_for(trained: Trained) -> None:
    with pytest.raises(CheckpointError, match="7"):
        _ = ax.load_run(trained[0], step=7).state


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no run: it has no config\.json"):
        ax.load_run(tmp_path)


def test_metrics_that_some_lines_lack_are_nan_there(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(
        '{"step": 1, "split": "train", "loss": "inf"}\n'
        '{"step": 2, "split": "train", "loss": 0.5, "alive": 0.25}\n'
    )
    metrics = read_metrics(file)["train"]
    assert metrics["loss"].tolist() == [np.inf, 0.5]
    np.testing.assert_array_equal(metrics["alive"], [np.nan, 0.25])
    file.write_text('{"step": 1, "split"\n')
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl:1"):
        read_metrics(file)


def test_the_result_of_training_is_shown_in_a_line(trained: Trained) -> None:
    assert len(repr(trained[1])) < 400
    assert "step=2" in repr(trained[1])


@pytest.mark.slow
def test_training_from_python_shows_progress_on_stderr_unless_quiet(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, _ = trained
    trainer = trainer_on(ax.load_run(directory).config, 1)
    trainer.run(directory, quiet=True)
    assert capsys.readouterr() == ("", "")
    trainer.run(directory)
    out, error = capsys.readouterr()
    assert out == ""
    assert "resuming at step 2 of 2 steps" in error
    assert "done at step 2" in error
