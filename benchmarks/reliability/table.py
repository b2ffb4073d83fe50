"""Writes the table of docs/reliability.md from the results in benchmarks/results/reliability.

A promise without a result is "not measured", or "not built" where nothing keeps it yet.
"""

import json
from pathlib import Path

from axcore.report.table import markdown_table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "reliability"
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- table: make reliability -->\n", "<!-- end of table -->"

PROMISES = {
    "R1": "A run that is killed at any moment resumes with equal bits",
    "R2": "Damage of a checkpoint is noticed, and the newest whole step restored",
    "R3": "At every instant there is a verified checkpoint",
    "R4": "A full, slow or vanished disk costs a warning and a retry, then a clear stop",
    "R5": "A dead process is noticed within a second, and all restart",
    "R6": "Survivors recover without a restart",
    "R7": "No hang is for ever",
    "R8": "Silent corruption is noticed, and the device named",
    "R9": "A loss that is not finite changes nothing; a spike rolls back",
    "R10": "Preemption ends at an agreed step with a checkpoint",
    "R11": "The number of processes may change",
    "R12": "A hot spare takes a lost process's place",
    "R13": "A slow process is named",
    "R14": "A loop of crashes ends with what is known",
    "R15": "No two runs write one directory",
    "R16": "Snapshots in host memory recover without storage",
    "R17": "Object stores keep checkpoints",
    "R18": "Every second has one label, and they add up",
    "R19": "A supervisor that dies leaves no process behind",
    "R20": "All of it costs less than 1 % of step time",
}
NOT_BUILT = ("R6",)


def table(results: Path = RESULTS) -> str:
    """Returns the table in Markdown."""
    rows = [(name, text, *_cells(results / f"{name}.json")) for name, text in PROMISES.items()]
    return markdown_table(("", "promise", "tries", "outcome", "command"), rows) + "\n"


def _cells(path: Path) -> tuple[str, str, str]:
    if not path.exists():
        return "", "not built" if path.stem in NOT_BUILT else "not measured", ""
    result = json.loads(path.read_text(encoding="utf-8"))
    return f"{result['tries']:,}", result["outcome"].replace("|", "/"), f"`{result['command']}`"


def page_with_table(page: str, made: str) -> str:
    """Returns the page with the table between its marks."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}{made}{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    text = page_with_table(PAGE.read_text(encoding="utf-8"), table())
    PAGE.write_text(text, encoding="utf-8")
