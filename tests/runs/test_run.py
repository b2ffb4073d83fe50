"""`load_run`: what a run directory contains is what training returned."""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from html_words import words_of

import axcore as ax
from axcore.errors import CheckpointError
from axcore.markup import curve
from axcore.runs.run import read_metrics
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
    with pytest.raises(CheckpointError, match=r"not a run directory: it has no config\.json"):
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


@pytest.fixture
def run(trained, tmp_path):
    """Returns a copy of a run, in a folder whose name is hostile, with the losses 4, 2, nan."""
    directory = tmp_path / "a<b & c"
    shutil.copytree(trained[0], directory)
    lines = [{"split": "train", "step": n, "loss": v} for n, v in [(1, 4.0), (2, 2.0), (3, "nan")]]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    return ax.load_run(directory)


def shown(run: ax.Run) -> list[str]:
    return [word.text for word in words_of(run._repr_html_())]


def test_state_losses_and_curve_are_shown(run):
    words = shown(run)
    assert words[0] == str(run.directory)
    assert words[1].startswith("run, ")
    assert words[5:8] == ["train", "nan", "3"]
    assert words[8:10] == ["4", "2"]
    assert "polyline" in run._repr_html_()


def test_it_names_the_report_or_the_command_that_writes_it(run):
    assert shown(run)[-2:] == [f"axcore report {run.directory}", "writes a report"]
    (Path(run.directory) / "report.html").write_text("")
    assert shown(run)[-2:] == ["report:", f"{run.directory}/report.html"]


def test_a_run_without_metrics_and_one_with_damaged_ones_say_so(run):
    (run.directory / "metrics.jsonl").write_text("")
    assert "nothing is logged yet" in shown(run)
    (run.directory / "metrics.jsonl").write_text('{"split"\n{"split"\n')
    assert "the line does not hold metrics" in " ".join(shown(run))


def test_a_curve_goes_from_left_to_right_and_down_as_values_fall():
    drawn = curve([0, 10, 20], [3.0, float("nan"), 1.0], label="loss")
    assert 'points="0.0,12.0 360.0,84.0"' in drawn
    assert curve([0], [1.0], label="one point") == ""
    assert 'points="0.0,84.0 360.0,84.0"' in curve([1, 2], [5.0, 5.0], label="flat")


FACE = Path(ax.__file__)


def in_new_process(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_face_is_listed_and_configs_are_made_without_jax() -> None:
    program = """
import sys, axcore as ax
@ax.config
class Size:
    dim: int = ax.REQUIRED
ax.update_config(ax.evolve(Size(dim=1), dim=2), {"dim": 3})
print({"Trainer", "load_run"} <= set(dir(ax)), "jax" in sys.modules)
"""
    assert in_new_process(program).split() == ["True", "False"]


@pytest.mark.parametrize("name", ax.__all__)
def test_every_name_of_the_face_is_there(name: str) -> None:
    assert getattr(ax, name) is not None
    assert name in dir(ax)


def test_type_checkers_see_the_names_from_where_they_come_from() -> None:
    block = next(node for node in ast.parse(FACE.read_text()).body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == ax._LAZY


@pytest.mark.parametrize("before", ["", "import axcore.config\n", "import axcore.config.edit\n"])
def test_config_is_the_decorator_whatever_was_imported(before: str) -> None:
    program = (
        f"{before}import axcore as ax\nfrom axcore.config import config\nprint(ax.config is config)"
    )
    assert in_new_process(program).strip() == "True"


def test_a_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'axcore' has no attribute 'load_runs'"):
        ax.load_runs  # noqa: B018


def test_python_m_axcore_is_the_command() -> None:
    command = [sys.executable, "-m", "axcore", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"axcore, version {ax.__version__}"
