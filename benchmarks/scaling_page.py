"""Writes the table of docs/scaling.md and its chart from `results/scaling.json`.

pip install matplotlib
python benchmarks/scaling_page.py
"""

import json
from pathlib import Path
from typing import Any

from axcore.report.table import markdown_table, page_with_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "scaling.json"
PAGE = ROOT / "docs" / "scaling.md"
CHART = ROOT / "docs" / "scaling.svg"
BEGIN = "<!-- table: scaling.py -->\n"
END = "<!-- end of table -->"
HEADER = (
    "model",
    "chips",
    "needs, of GiB",
    "predicted step",
    "waits",
    "MFU",
    "of the first",
    "published MFU",
    "of the first",
)


def table(figures: dict[str, Any]) -> str:
    """Return a row for each step, with its speed compared with that on one slice."""
    rows = [
        (
            name,
            f"{one['chips']:,}",
            f"{one['needs_gib']:.1f} of {one['capacity_gib']:.1f}"
            + ", does not fit" * (one["needs_gib"] > one["capacity_gib"]),
            *(_seconds(one.get(key)) for key in ("predicted_step_s", "waits_s")),
            *_shares(one.get("predicted_mfu"), fewest.get("predicted_mfu")),
            *_shares(one["published_mfu"], fewest["published_mfu"]),
        )
        for name, series in figures.items()
        for fewest in (next(iter(series.values())),)
        for one in series.values()
    ]
    return markdown_table(HEADER, rows) + "\n"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3g} s"


def _shares(mfu: float | None, of_one: float | None) -> tuple[str, str]:
    if mfu is None or of_one is None:
        return "", ""
    return f"{100 * mfu:.1f} %", f"{mfu / of_one:.3f}"


def draw(figures: dict[str, Any]) -> None:
    """Draw speed a chip compared with that on one slice, predicted and published."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "axcore"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for place, (name, series) in enumerate(figures.items()):
        for key, style in (("predicted_mfu", "-o"), ("published_mfu", ":x")):
            points = [(one["chips"], one[key]) for one in series.values() if one.get(key)]
            if points:
                chips, mfu = zip(*points, strict=True)
                label = f"{name}, {key.removesuffix('_mfu')}"
                shares = [one / mfu[0] for one in mfu]
                axes.plot(chips, shares, style, color=f"C{place}", label=label)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda chips, _: f"{chips:,.0f}")
    axes.set_xlabel("chips, in slices of 256")
    axes.set_ylabel("speed of a chip, of that on one slice")
    axes.set_ylim(0.7, 1.15)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", ncols=2)
    figure.savefig(CHART, bbox_inches="tight", metadata={"Date": None})


def write_page(figures: dict[str, Any]) -> None:
    """Write the table, and the chart where matplotlib is installed."""
    page = page_with_table(PAGE.read_text(encoding="utf-8"), table(figures), BEGIN, END)
    PAGE.write_text(page, encoding="utf-8")
    try:
        draw(figures)
    except ModuleNotFoundError:
        print("the chart is as it was: pip install matplotlib, then scaling_page.py")


if __name__ == "__main__":
    write_page(json.loads(RESULTS.read_text(encoding="utf-8"))["figures"])
