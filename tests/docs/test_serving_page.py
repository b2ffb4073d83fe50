"""`docs/serving.md`: every block of Python prints what the page says."""

import importlib.util
from pathlib import Path

import pytest
from pages import run_page

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "serving.md"


@pytest.mark.slow
def test_every_block_of_python_prints_what_the_page_says():
    assert run_page(PAGE) >= 1


def test_the_table_is_that_of_the_committed_results():
    file = ROOT / "benchmarks/serving_page.py"
    spec = importlib.util.spec_from_file_location("serving_page", file)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    page = PAGE.read_text(encoding="utf-8")
    assert made.page_with_figures(page) == page, "run: python benchmarks/serving_page.py"
