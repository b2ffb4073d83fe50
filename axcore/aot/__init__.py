"""Compiling for hardware that is not here: does it fit, where does memory go, how long is a step."""

from axcore.aot.compile import compile_for
from axcore.aot.report import Report, report_from_json
from axcore.aot.targets import find_aot_target

__all__ = ["Report", "compile_for", "find_aot_target", "report_from_json"]
