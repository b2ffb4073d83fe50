"""The report of runs: one HTML file with nothing beside it."""

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any


def run_page_html(runs: Sequence[Mapping[str, Any]], *, written: str, is_live: bool = False) -> str:
    """Returns a page that shows runs, over each other where there are several.

    Args:
        runs: What is known of each, as `axcore.runs.RunFacts` has it, as values of JSON.
        written: When the page is made, as people read it.
        is_live: Whether it asks for `facts.json` beside it again and again.
    """
    page = resources.files("axcore.report").joinpath("run_page.html").read_text("utf-8")
    content = json.dumps(
        {"runs": list(runs), "written": written, "is_live": is_live}, allow_nan=False
    )
    # A sample or a path may hold what would end the script.
    return page.replace("/*FACTS*/", content.replace("<", "\\u003c"))
