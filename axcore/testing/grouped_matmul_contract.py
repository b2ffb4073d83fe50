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
    model_cases=tuple(
        grouped_matmul_case(
            GroupedMatmulSample(
                name=f"{num_groups}_experts_of_{width}_by_{out_width}",
                group_sizes=tuple(16384 // num_groups + shift for shift in (-8, 8))
                * (num_groups // 2),
                num_rows=16384,
                width=width,
                out_width=out_width,
            )
        )
        for num_groups, width, out_width in ((8, 4096, 14336), (40, 2048, 1408))
    ),
)
