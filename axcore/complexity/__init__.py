"""The meter of LoC-complexity: what a feature costs in lines, and how that grows."""

from axcore.complexity.changes import Change, FileChange, Kind, measure_change, measure_commits
from axcore.complexity.evidence import Evidence, chooses, multiplies, runs, serves
from axcore.complexity.growth import Growth, fit_growth, measure_growth
from axcore.complexity.lines import code_lines, lines_to_write
from axcore.complexity.meter import Lack, Measurement, check_gate, measure_feature, why_not_in
from axcore.complexity.trace import Operation, Trace, trace_model

__all__ = [
    "Change",
    "Evidence",
    "FileChange",
    "Growth",
    "Kind",
    "Lack",
    "Measurement",
    "Operation",
    "Trace",
    "check_gate",
    "chooses",
    "code_lines",
    "fit_growth",
    "lines_to_write",
    "measure_change",
    "measure_commits",
    "measure_feature",
    "measure_growth",
    "multiplies",
    "runs",
    "serves",
    "trace_model",
    "why_not_in",
]
