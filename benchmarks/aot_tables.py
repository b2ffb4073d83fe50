"""Writes the tables of docs/aot.md from `results/`: `aot_experiments.json`, `aot_search.json`, and
for cycles also `aot.json` and `peer_maxtext.json`.
"""

import json
from pathlib import Path
from typing import Any

from axcore.report.table import markdown_table, page_with_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "aot.md"
BEGIN = "<!-- table: aot_experiments.py -->\n"
BEGIN_PUBLISHED = "<!-- table: aot_experiments.py, published -->\n"
BEGIN_SEARCH = "<!-- table: aot_search.py -->\n"
BEGIN_CYCLES = "<!-- table: aot.py -->\n"
END = "<!-- end of table -->"


def fits_table(figures: dict[str, Any]) -> str:
    """Return what each experiment needs on its machine."""
    rows = [
        (
            *name.split(" on "),
            _needs(one),
            _number(one["predicted_step_s"], "s"),
            one["products"],
            _percent(one["predicted_mfu"]),
        )
        for name, one in figures.items()
    ]
    header = ("experiment", "target", "needs, of GiB", "predicted step", "products", "MFU")
    return markdown_table(header, rows) + "\n"


def published_table(figures: dict[str, Any]) -> str:
    """Return predicted steps compared with published ones, and how far they are from them."""
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


def search_table(figures: dict[str, Any]) -> str:
    """Return what each search compiled, in order, and mark what it chose."""
    rows = [
        (
            *name.split(" on "),
            " ".join(f"`{change}`" for change in one["changes"]) or "as its rule has it",
            _needs(one),
            _number(one["predicted_step_s"], "s"),
            "chosen" if one["changes"] == found["chosen"] else "",
        )
        for name, found in figures.items()
        for one in found["attempts"]
    ]
    header = ("experiment", "target", "change", "needs, of GiB", "predicted step", "")
    return markdown_table(header, rows) + "\n"


def _needs(one: dict[str, Any]) -> str:
    """Return what a step needs of what a device has, or why it is not known."""
    if one["needed_gib"] is None:
        return one.get("reason") or "does not fit"
    return f"{one['needed_gib']} of {one['capacity_gib']}" + ", does not fit" * (not one["fits"])


SIZES = {"7b": "llama2-7b on tpu-v5p-512", "70b": "llama2-70b on tpu-v5p-1024"}


def cycles_table() -> str:
    """Return the cycles of train steps that recompute all, as far as they were compiled."""
    ours, by_hand, maxtext = (_figures(name) for name in ("aot_experiments", "aot", "peer_maxtext"))
    rows = (
        ("by hand, the compiler's defaults", by_hand, "by_hand"),
        ("by hand, axl-tpu's compiler options", by_hand, "by_hand_with_the_same_options"),
    )
    found = [
        ("axcore", *(_cycles(ours.get(f"{name}, recomputing all")) for name in SIZES.values())),
        *((who, *(_cycles(of.get(size, {}).get(key)) for size in SIZES)) for who, of, key in rows),
    ]
    found += [
        (f"MaxText, {whose}", *(_cycles(maxtext.get(size + suffix)) for size in SIZES))
        for whose, suffix in (
            ("its defaults", ""),
            ("axl-tpu's compiler options", ", axl-tpu's options"),
        )
    ]
    return markdown_table(("cycles of XLA's instructions", "7B", "70B"), found) + "\n"


def _cycles(one: dict[str, Any] | None) -> str:
    return "" if one is None else f"{one['cycles']:.3g}".replace("e+", "e").replace("e0", "e")


def _figures(name: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))["figures"]
    return figures


def _number(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.3g} {unit}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def page_with_tables(page: str) -> str:
    """Return the page with all tables as the results have them."""
    figures = _figures("aot_experiments")
    page = page_with_table(page, cycles_table(), BEGIN_CYCLES, END)
    page = page_with_table(page, fits_table(figures), BEGIN, END)
    page = page_with_table(page, search_table(_figures("aot_search")), BEGIN_SEARCH, END)
    return page_with_table(page, published_table(figures), BEGIN_PUBLISHED, END)


FEW = {
    "pictures": ("vit-l16", "siglip-so400m", "dit-xl2"),
    "audio": ("whisper-large-v3",),
}
"""Pages that have the rows of some experiments too."""


def page_with_few(page: str, experiments: tuple[str, ...]) -> str:
    """Return a page with the table of some experiments."""
    figures = {
        name: one
        for name, one in _figures("aot_experiments").items()
        if name.split(" on ")[0] in experiments
    }
    return page_with_table(page, fits_table(figures), BEGIN, END)


def write_page() -> Path:
    """Write the tables into docs/aot.md, whose path is returned, and the pages of `FEW`."""
    PAGE.write_text(page_with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    for name, experiments in FEW.items():
        other = PAGE.with_name(f"{name}.md")
        text = page_with_few(other.read_text(encoding="utf-8"), experiments)
        other.write_text(text, encoding="utf-8")
    return PAGE.relative_to(ROOT)


if __name__ == "__main__":
    print(f"written to {write_page()}")
