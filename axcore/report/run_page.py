"""The report of runs: one HTML file with nothing beside it."""

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from axcore.markup import embedded_json
from axcore.report.packed_batch import packed_batch_template

REPORT_NAME = "report.html"
"""Of a run's own report, in its directory."""


def run_page_html(
    runs: Sequence[Mapping[str, Any]], *, written: str, is_live: bool = False, part: str = ""
) -> str:
    """Returns a page that shows runs, over each other where there are several.

    Args:
        runs: What is known of each, as `axcore.runs.RunFacts` has it, as values of JSON.
        written: When the page is made, as people read it.
        is_live: Whether it asks for `facts.json` beside it again and again.
        part: "profile" where nothing but profiles is shown; everything by default. Of the facts,
            name, directory and profile are enough then.
    """
    page = resources.files("axcore.report").joinpath("run_page.html").read_text("utf-8")
    facts = {"runs": list(runs), "written": written, "is_live": is_live, "part": part}
    page = page.replace("/*BATCH_PAGE*/", embedded_json(packed_batch_template()))
    return page.replace("/*FACTS*/", embedded_json(facts))
