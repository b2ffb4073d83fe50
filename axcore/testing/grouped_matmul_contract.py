"""What `grouped_matmul` promises: its contract, for kernels of it."""

from typing import Any

from jax import Array

from axcore.ops.call import Call
from axcore.ops.grouped_matmul import grouped_matmul_call
from axcore.ops.grouped_matmul_reference import grouped_matmul_reference
from axcore.ops.grouped_matmul_samples import GROUPED_MATMUL_SAMPLES, GroupedMatmulSample
from axcore.testing.contracts import Case, OpContract

__all__ = ["GROUPED_MATMUL", "GroupedMatmulSample", "grouped_matmul_case"]

_Inputs = tuple[Array, Array, Array]


def _call(inputs: _Inputs, spec: None) -> Call:
    return grouped_matmul_call(*inputs)


def _run(kernel: Any, inputs: _Inputs, spec: None) -> Any:
    return kernel(*inputs)


def grouped_matmul_case(sample: GroupedMatmulSample) -> Case:
    """Returns the case of a sample."""
    return Case(
        name=sample.name, make=lambda dtype: (sample.make(dtype), None), call=_call, run=_run
    )


GROUPED_MATMUL = OpContract(
    reference=grouped_matmul_reference,
    cases=tuple(grouped_matmul_case(sample) for sample in GROUPED_MATMUL_SAMPLES),
)
