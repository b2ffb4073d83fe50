"""Modules: imperative to read, pure to run."""

from axcore.module.batch_spec import ArraySpec, BatchSpec, LossGroups, ModelFlops
from axcore.module.context import LayerPosition
from axcore.module.functional import functional
from axcore.module.module import Module, entry
from axcore.module.outputs import (
    NATS_A_TOKEN,
    Loss,
    Outputs,
    RowMeasure,
    apply_updates,
    merge_buffer,
    merge_microbatches,
    merge_outputs,
    split_microbatches,
)
from axcore.module.param import (
    Axes,
    ConstantInit,
    DType,
    DTypes,
    Initializer,
    Merge,
    Normal,
    Param,
    ParamSpec,
    VarianceScaling,
    count_params,
)
from axcore.module.remat import Remat, named, named_bits
from axcore.module.restack import restacked, restacked_arrays
from axcore.module.rng import Path
from axcore.module.stacked_module import StackedModule, StackRunner
from axcore.module.summary import summary_table

__all__ = [
    "NATS_A_TOKEN",
    "ArraySpec",
    "Axes",
    "BatchSpec",
    "ConstantInit",
    "DType",
    "DTypes",
    "Initializer",
    "LayerPosition",
    "Loss",
    "LossGroups",
    "Merge",
    "ModelFlops",
    "Module",
    "Normal",
    "Outputs",
    "Param",
    "ParamSpec",
    "Path",
    "Remat",
    "RowMeasure",
    "StackRunner",
    "StackedModule",
    "VarianceScaling",
    "apply_updates",
    "count_params",
    "entry",
    "functional",
    "merge_buffer",
    "merge_microbatches",
    "merge_outputs",
    "named",
    "named_bits",
    "restacked",
    "restacked_arrays",
    "split_microbatches",
    "summary_table",
]
