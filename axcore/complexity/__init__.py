"""The meter of LoC-complexity: what a feature costs in lines, and how that grows."""

from axcore.complexity.changes import Change, FileChange, Kind, measure_change, measure_commits
from axcore.complexity.evidence import Evidence, chooses, multiplies, runs, serves
from axcore.complexity.growth import Growth, fit_growth, measure_growth
from axcore.complexity.lines import code_lines, lines_to_write
from axcore.complexity.meter import (
    KindCosts,
    Measurement,
    MissingFeature,
    VariantGrowth,
    check_gate,
    measure_feature,
    measure_kinds,
    variant_growths,
    why_not_in,
)
from axcore.complexity.trace import Operation, Trace, trace_model

__all__ = [
    "Change",
    "Evidence",
    "FileChange",
    "Growth",
    "Kind",
    "KindCosts",
    "Measurement",
    "MissingFeature",
    "Operation",
    "Trace",
    "VariantGrowth",
    "check_gate",
    "chooses",
    "code_lines",
    "fit_growth",
    "lines_to_write",
    "measure_change",
    "measure_commits",
    "measure_feature",
    "measure_growth",
    "measure_kinds",
    "multiplies",
    "runs",
    "serves",
    "trace_model",
    "variant_growths",
    "why_not_in",
]
