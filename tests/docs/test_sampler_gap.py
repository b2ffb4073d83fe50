"""The page on learning from rewards shows the gaps that were recorded last."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_the_table_is_that_of_the_results(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    made = import_module("sampler_gap")
    page = made.PAGE.read_text(encoding="utf-8")
    assert [*made.recorded("sampler_gap")["rows"]] == [*made.ROWS]
    assert made.page_with_figures(page) == page, "run: python benchmarks/sampler_gap.py"
