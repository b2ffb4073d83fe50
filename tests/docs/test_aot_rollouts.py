"""The page on learning from rewards shows what was recorded last."""

import sys
from importlib import import_module
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_tables_are_those_of_the_results(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    made = import_module("aot_rollouts")
    page = made.PAGE.read_text(encoding="utf-8")
    names = [one.name for one in made.CASES]
    recorded = [*made.recorded(made.NAME)]
    assert recorded
    assert recorded == [one for one in names if one in recorded]
    assert made.page_with_figures(page) == page, "run: python benchmarks/aot_rollouts.py"
