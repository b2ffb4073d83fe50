"""The page on ahead-of-time compilation shows what was recorded last."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tables_are_those_of_the_results():
    spec = importlib.util.spec_from_file_location("aot_tables", ROOT / "benchmarks/aot_tables.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    page = made.PAGE.read_text(encoding="utf-8")
    assert made.page_with_tables(page) == page, "run: python benchmarks/aot_tables.py"
