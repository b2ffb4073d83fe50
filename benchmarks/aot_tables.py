"""Writes the tables of docs/aot.md from `results/aot_experiments.json`."""

import json
from pathlib import Path
from typing import Any

from axcore.report.table import markdown_table, page_with_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "aot_experiments.json"
PAGE = ROOT / "docs" / "aot.md"
BEGIN = "<!-- table: aot_experiments.py -->\n"
BEGIN_PUBLISHED = "<!-- table: aot_experiments.py, published -->\n"
END = "<!-- end of table -->"


def fits_table(figures: dict[str, Any]) -> str:
    """Returns what each experiment needs on its machine."""
    rows = [
        (
            *name.split(" on "),
            f"{one['needed_gib']} of {one['capacity_gib']}" + ", does not fit" * (not one["fits"]),
            _number(one["predicted_step_s"], "s"),
            one["products"],
            _percent(one["predicted_mfu"]),
        )
        for name, one in figures.items()
    ]
    header = ("experiment", "target", "needs, of GiB", "predicted step", "products", "MFU")
    return markdown_table(header, rows) + "\n"


def published_table(figures: dict[str, Any]) -> str:
    """Returns predicted steps beside published ones, and how far they are from them."""
    rows = [
        (
            *name.split(" on "),
            _number(one["predicted_step_s"], "s"),
            who,
            f"{step_s} s",
            f"{100 * (one['predicted_over_published'][who] - 1):+.0f} %",
        )
        for name, one in figures.items()
        for who, step_s in one["published_step_s"].items()
    ]
    header = ("experiment", "target", "predicted", "published by", "published", "error")
    return markdown_table(header, rows) + "\n"


def _number(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.3g} {unit}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def page_with_tables(page: str) -> str:
    """Returns the page with both tables as the results have them."""
    figures = json.loads(RESULTS.read_text(encoding="utf-8"))["figures"]
    page = page_with_table(page, fits_table(figures), BEGIN, END)
    return page_with_table(page, published_table(figures), BEGIN_PUBLISHED, END)


def write_page() -> Path:
    """Writes both tables into docs/aot.md, and returns its path."""
    PAGE.write_text(page_with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return PAGE.relative_to(ROOT)


if __name__ == "__main__":
    print(f"written to {write_page()}")
