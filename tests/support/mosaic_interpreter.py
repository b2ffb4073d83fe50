"""Pallas' interpreter for Mosaic GPU, and the forms of our kernels that it runs."""

import jax
import pytest

if jax.__version_info__ < (0, 10, 2):
    pytest.skip(
        "the interpreter before jax 0.10.2 cannot run these kernels", allow_module_level=True
    )

from axl_gpu.kernels.matmul.pipeline import Variant
from jax._src.pallas.mosaic_gpu.interpret.params import (
    InterpretGPUParams,
    force_gpu_interpret_mode,
)

INTERPRETER = InterpretGPUParams(out_of_bounds_reads="uninitialized")
"""Memory that nothing was written to is NaN, and so is what is past the ends of arrays, where a GPU
reads zeros."""

SIMPLE = Variant(is_tuned=False, interpreter=INTERPRETER)

TUNED = Variant(interpreter=INTERPRETER)
"""Slow: its warp groups are threads here, which wait for one another."""

__all__ = ["INTERPRETER", "SIMPLE", "TUNED", "InterpretGPUParams", "force_gpu_interpret_mode"]
