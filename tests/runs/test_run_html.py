"""What notebooks show of a run: its state, last losses, a curve, and where its report is."""

import json
import shutil
from pathlib import Path

import pytest
from html_words import words_of

import axcore as ax
from axcore.markup import curve


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
    assert "the line is no metrics" in " ".join(shown(run))


def test_a_curve_goes_from_left_to_right_and_down_as_values_fall():
    drawn = curve([0, 10, 20], [3.0, float("nan"), 1.0], label="loss")
    assert 'points="0.0,12.0 360.0,84.0"' in drawn
    assert curve([0], [1.0], label="one point") == ""
    assert 'points="0.0,84.0 360.0,84.0"' in curve([1, 2], [5.0, 5.0], label="flat")
