"""Modules: imperative to read, pure to run."""

from axcore.module.copies import Copies
from axcore.module.dtypes import DType, DTypes
from axcore.module.functional import functional
from axcore.module.initializers import Constant, Initializer, Normal, VarianceScaling
from axcore.module.lift import Repeated
from axcore.module.module import Module, entry
from axcore.module.outputs import Loss, Outputs, apply_updates
from axcore.module.param import Axes, Merge, Param, ParamSpec, count_params
from axcore.module.parts import (
    dealt,
    gathered_in,
    outputs_of_whole,
    statistic_of_whole,
)
from axcore.module.remat import Remat, named
from axcore.module.streams import Path
from axcore.module.summary import summary_table

__all__ = [
    "Axes",
    "Constant",
    "Copies",
    "DType",
    "DTypes",
    "Initializer",
    "Loss",
    "Merge",
    "Module",
    "Normal",
    "Outputs",
    "Param",
    "ParamSpec",
    "Path",
    "Remat",
    "Repeated",
    "VarianceScaling",
    "apply_updates",
    "count_params",
    "dealt",
    "entry",
    "functional",
    "gathered_in",
    "named",
    "outputs_of_whole",
    "statistic_of_whole",
    "summary_table",
]
