"""Mosaic GPU's entry point, under the names that its arguments have in the jax at hand."""

import inspect
from typing import Any

from jax.experimental.pallas import mosaic_gpu as plgpu

_NEW, _OLD = ("out_type", "scratch_types"), ("out_shape", "scratch_shapes")
_OUTPUTS, _SCRATCH = _NEW if _NEW[0] in inspect.signature(plgpu.kernel).parameters else _OLD


def mosaic_kernel(body: Any, outputs: Any, *, scratch: Any = (), **options: Any) -> Any:
    """Return `plgpu.kernel` of a body; older jax has other names for outputs and scratch memory.

    Args:
        body: From references to inputs and outputs, and by name to scratch memory.
        outputs: Shapes and dtypes of what it writes.
        scratch: Shared memory and barriers, by name.
        options: As `plgpu.kernel` has them.
    """
    return plgpu.kernel(body, **{_OUTPUTS: outputs, _SCRATCH: scratch}, **options)
