"""Compile for hardware you do not have: does it fit, where does memory go, how long it takes."""

from axcore.aot.compile import (
    ReportCache,
    compile_for,
    compile_resolved,
    compile_rollouts,
    compile_serving,
)
from axcore.aot.report.page import report_page
from axcore.aot.report.report import Report, report_from_json
from axcore.aot.report.text import report_text, search_text, verdict
from axcore.aot.rollouts import RolloutReport, rollout_report_from_json, rollout_text
from axcore.aot.search import Attempt, fastest, search, search_fields
from axcore.aot.serving.report import ServingLoad, ServingReport, serving_report_from_json
from axcore.aot.serving.text import serving_text
from axcore.aot.targets import compile_devices, find_aot_target

__all__ = [
    "Attempt",
    "Report",
    "ReportCache",
    "RolloutReport",
    "ServingLoad",
    "ServingReport",
    "compile_devices",
    "compile_for",
    "compile_resolved",
    "compile_rollouts",
    "compile_serving",
    "fastest",
    "find_aot_target",
    "report_from_json",
    "report_page",
    "report_text",
    "rollout_report_from_json",
    "rollout_text",
    "search",
    "search_fields",
    "search_text",
    "serving_report_from_json",
    "serving_text",
    "verdict",
]
