"""The table of docs/performance.md, from `results/serving.json`: figures, ratios and goals.

    python benchmarks/serving_page.py

writes it. `serving.py` does so at its end.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from axcore.report.table import markdown_table, page_with_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "serving.json"
PAGE = ROOT / "docs" / "performance.md"
BEGIN = "<!-- table: serving.py -->\n"
END = "<!-- end of table -->"
HEADER = ("what", "axcore", "compared with", "its figure", "ratio", "goal")
OURS = {"axcore": "", "axcore_half": ", 16-bit caches", "axcore_split": ", split"}
"""Ways in which axcore is measured, and how the table marks them."""
MEASURES = {
    "decode_1": ("a token of 1 row", {"llama.cpp": 1.0, "transformers": 1.0}),
    "decode_8": ("a token of each of 8 rows", {"llama.cpp": 0.83, "transformers": 0.83}),
    "first": ("first token after 512", {"llama.cpp": 1.0, "transformers": 1.0}),
}
"""What is measured, and axcore's time by each rival's at most; 0.83 is 1.2 times the throughput."""
LOAD = {
    "transformers_together": ("transformers, `generate_batch`", 4.0),
    "transformers_one_by_one": ("transformers, one after another", 4.0),
    "axcore_one_by_one": ("axcore, one after another", None),
}
"""Who else serves the load, and how many times better axcore is to be: in tokens a second, and in
the time to the first token that all but 1 % of requests have at most."""
HOST_GOAL_MS = 0.3
STRICTER = {("32M", "decode_1", "transformers"): 0.5}

Figures = dict[str, Any]
Row = tuple[str, ...]


def table(figures: Figures) -> str:
    """Return what was measured, in Markdown."""
    rows = [
        row
        for model, found in figures["models"].items()
        for task, (what, goals) in MEASURES.items()
        for rival, goal in goals.items()
        if (
            row := _time_row(
                f"{model}: {what}",
                found.get(task, {}),
                rival,
                STRICTER.get((model, task, rival), goal),
            )
        )
    ]
    return markdown_table(HEADER, [*rows, *_load_rows(figures["load"])]) + "\n"


def _time_row(what: str, found: Figures, rival: str, goal: float) -> Row | None:
    """Return a row about a rival, by the fastest way of each."""
    ours = _fastest(found, OURS)
    theirs = _fastest(found, (rival, f"{rival}_compiled"))
    if ours is None or theirs is None:
        return None
    ratio = found[theirs][f"{ours}_by_it"]
    times = (f"{found[ours]['ms']:.2f} ms{OURS[ours]}", f"{found[theirs]['ms']:.2f} ms")
    shown = theirs.replace("_compiled", ", compiled")
    return what, times[0], shown, times[1], f"{ratio:.2f}", f"<= {goal:g}" + _mark(ratio <= goal)


def _fastest(found: Figures, ways: Iterable[str]) -> str | None:
    return min(
        (one for one in ways if one in found), key=lambda one: found[one]["ms"], default=None
    )


def _load_rows(load: Figures) -> list[Row]:
    rows: list[Row] = []
    ways = [one for way in OURS if (one := f"{way}_together") in load]
    best = max(ways, key=lambda one: load[one]["tokens_per_s"], default="")
    ours, mark = load.get(best), OURS.get(best.removesuffix("_together"), "")
    for name, (rival, goal) in LOAD.items():
        theirs = load.get(name)
        if ours is None or theirs is None:
            continue
        more, later = (ours[key] / theirs[key] for key in ("tokens_per_s", "p99_first_s"))
        wish = wait = ""
        if goal is not None:
            wish = f">= {goal:g}" + _mark(more >= goal)
            wait = f"<= {1 / goal:g}" + _mark(later <= 1 / goal)
        speeds = [f"{one['tokens_per_s']:.0f} tokens/s" for one in (ours, theirs)]
        firsts = [f"{one['p99_first_s']:.2f} s" for one in (ours, theirs)]
        rows += [
            ("load: throughput", speeds[0] + mark, rival, speeds[1], f"{more:.2f}", wish),
            ("load: first token, p99", firsts[0] + mark, rival, firsts[1], f"{later:.2f}", wait),
        ]
    if "axcore_host" in load:
        ms = load["axcore_host"]["host_ms_per_step"]
        goal = f"<= {HOST_GOAL_MS} ms" + _mark(ms <= HOST_GOAL_MS)
        rows.append(("engine's own time a step, 64 slots", f"{ms:.2f} ms", "", "", "", goal))
    return rows


def _mark(is_met: bool) -> str:
    return "" if is_met else ", missed"


def page_with_figures(page: str, results: Path = RESULTS) -> str:
    """Return a page with the table of committed results, an empty one before there are any."""
    figures: Figures = {"models": {}, "load": {}}
    if results.exists():
        figures = json.loads(results.read_text(encoding="utf-8"))["figures"]
    return page_with_table(page, table(figures), BEGIN, END)


def write_page() -> None:
    """Write the table of committed results into the page."""
    PAGE.write_text(page_with_figures(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write_page()
