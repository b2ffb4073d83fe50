"""The page on LoRA shows the memory that was recorded last."""

import sys
from importlib import import_module
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_table_is_that_of_the_results(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    made = import_module("aot_fine_tuning")
    page = made.PAGE.read_text(encoding="utf-8")
    rows = [one.name for one in made.METHODS]
    assert [one["method"] for one in made.recorded("aot_fine_tuning").values()] == rows * len(
        made.FOR_TARGET
    )
    assert made.page_with_figures(page) == page, "run: python benchmarks/aot_fine_tuning.py"
