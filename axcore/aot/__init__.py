"""Compiling for hardware that is not here: does it fit, where does memory go, how long it takes."""

from axcore.aot.compile import compile_for
from axcore.aot.page import report_page
from axcore.aot.report import Report, report_from_json
from axcore.aot.search import Attempt, cheapest, search
from axcore.aot.targets import find_aot_target
from axcore.aot.text import report_text, search_text, verdict

__all__ = [
    "Attempt",
    "Report",
    "cheapest",
    "compile_for",
    "find_aot_target",
    "report_from_json",
    "report_page",
    "report_text",
    "search",
    "search_text",
    "verdict",
]
