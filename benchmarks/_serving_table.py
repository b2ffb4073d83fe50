"""The table of `serving.py`, from its results: figures, ratios and goals.

    python benchmarks/_serving_table.py

prints that of the committed results in Markdown, as docs/serving.md has it.
"""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "serving.json"
GOALS = {
    ("decode_1", "llama.cpp"): ("1 row", 1.0),
    ("decode_1", "transformers"): ("1 row", 0.5),
    ("decode_8", "llama.cpp"): ("8 rows", 1 / 1.2),
    ("decode_8", "transformers"): ("8 rows", 1 / 1.2),
    ("first", "llama.cpp"): ("first token of 512", 1.0),
    ("first", "transformers"): ("first token of 512", 1.0),
}
"""Axcore's time by a rival's, at most."""
LOAD_GOAL = 4.0
HOST_GOAL_MS = 0.3

Figures = dict[str, Any]


def table(figures: Figures) -> str:
    """Returns Markdown: what was measured, axcore, the rival, the ratio and its goal."""
    lines = ["| model, measure | axcore | rival | axcore by it | goal |", "|---|---|---|---|---|"]
    for model, found in figures["models"].items():
        lines += [
            line
            for (task, rival), (what, goal) in GOALS.items()
            if (line := _time_line(model, what, found.get(task, {}), rival, goal))
        ]
    lines += _load_lines(figures["load"])
    host_ms = figures["load"].get("axcore_host", {}).get("host_ms_per_step")
    if host_ms is not None:
        lines.append(f"| host time of a step, 64 slots | {host_ms:.2f} ms | - | - | 0.3 ms |")
    return "\n".join(lines)


def _time_line(model: str, what: str, found: Figures, rival: str, goal: float) -> str | None:
    """Returns a line about a rival, by the faster of its ways."""
    ways = [found[name] for name in (rival, f"{rival}_compiled") if name in found]
    if "axcore" not in found or not ways:
        return None
    best = min(ways, key=lambda way: way["ms"])
    ratio = best["axcore_by_it"]
    return (
        f"| {model}, {what} | {found['axcore']['ms']:.2f} ms | {rival} {best['ms']:.2f} ms |"
        f" {ratio:.2f} | {goal:.2f}{_mark(ratio <= goal)} |"
    )


def _load_lines(load: Figures) -> list[str]:
    ours = load.get("axcore_together")
    lines = []
    for name, found in load.items():
        if ours is None or name in ("axcore_together", "axcore_host"):
            continue
        rival = name.replace("_together", ", generate_batch").replace("_", " ")
        more = ours["tokens_per_s"] / found["tokens_per_s"]
        sooner = found["p99_first_s"] / ours["p99_first_s"]
        is_goal = name.startswith("transformers")
        lines += [
            f"| load, tokens/s | {ours['tokens_per_s']:.0f} | {rival} {found['tokens_per_s']:.0f}"
            f" | {more:.2f} | {_least(more, is_goal)} |",
            f"| load, 99 % have the first token in | {ours['p99_first_s']:.2f} s | {rival}"
            f" {found['p99_first_s']:.2f} s | {1 / sooner:.2f} | - |",
        ]
    return lines


def _least(ratio: float, is_goal: bool) -> str:
    return f">= {LOAD_GOAL:.0f}{_mark(ratio >= LOAD_GOAL)}" if is_goal else "-"


def _mark(is_met: bool) -> str:
    return "" if is_met else " (missed)"


if __name__ == "__main__":
    print(table(json.loads(RESULTS.read_text(encoding="utf-8"))["figures"]))
