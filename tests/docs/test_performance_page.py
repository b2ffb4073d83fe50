"""The page on performance shows what was recorded last."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages():
    path = ROOT / "benchmarks/performance_page.py"
    spec = importlib.util.spec_from_file_location("performance_page", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_tables_are_those_of_the_results(pages):
    page = pages.PAGE.read_text(encoding="utf-8")
    assert pages.page_with_tables(page) == page, "run: python benchmarks/performance_page.py"


@pytest.mark.parametrize(("bound", "is_met"), [(2.0, "yes"), (1.5, "yes"), (1.499, "no")])
def test_a_goal_is_met_up_to_its_bound_and_missed_above(
    pages, tmp_path, monkeypatch, bound, is_met
):
    (tmp_path / "steps.json").write_text('{"figures": {"one": {"step_s": 1.5}}}')
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    row = pages.Goal("a step", bound, " s", "steps", ("one", "step_s")).row()
    assert row == ("a step", f"<= {bound:g} s", "1.500 s", is_met, "`steps.json`")


def test_a_goal_without_a_figure_is_neither_met_nor_missed(pages, tmp_path, monkeypatch):
    (tmp_path / "steps.json").write_text('{"figures": {}}')
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    row = pages.Goal("a step", 2.0, " s", "steps", ("one", "step_s")).row()
    assert row[2:4] == ("not measured", "")


def test_a_goal_that_is_the_least_is_missed_below_it(pages, tmp_path, monkeypatch):
    (tmp_path / "steps.json").write_text('{"figures": {"mfu": 0.599}}')
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    row = pages.Goal("a step", 0.6, "", "steps", ("mfu",), is_min=True).row()
    assert row[1:4] == (">= 0.6", "0.599", "no")


def test_goals_of_gpus_are_shown_once_they_were_measured(pages, tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    monkeypatch.setattr(pages, "GOALS", ())
    assert len(pages.goals_table().splitlines()) == 2
    best = {"mfu": {"axcore": 0.62}, "fp8_speedup": 1.3}
    (tmp_path / "gpu_h200_train_step.json").write_text(json.dumps({"figures": {"best": best}}))
    rows = pages.goals_table().splitlines()[2:]
    assert "on an H200" in rows[0]
    assert [row.split("|")[3:5] for row in rows] == [
        [" 0.620 ", " yes "],
        [" 1.300 times ", " no "],
        [" not measured ", "  "],
    ]
