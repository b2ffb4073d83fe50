"""Every block of Python of the pages on serving prints what they say.

What `docs/serving.md` shows is tested by `tests/serving/test_documented_clients.py`.
"""

import importlib.util
from pathlib import Path

import pytest
from pages import run_page

ROOT = Path(__file__).parents[2]
PAGES = ("serving-engine.md", "serving-memory.md")


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_every_block_of_python_prints_what_the_page_says(name):
    assert run_page(ROOT / "docs" / name) >= 1


def test_the_table_is_that_of_the_committed_results():
    file = ROOT / "benchmarks/serving_page.py"
    spec = importlib.util.spec_from_file_location("serving_page", file)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    page = made.PAGE.read_text(encoding="utf-8")
    assert made.page_with_figures(page) == page, "run: python benchmarks/serving_page.py"
