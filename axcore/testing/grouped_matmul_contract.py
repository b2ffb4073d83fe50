"""What `grouped_matmul` promises: its contract, for kernels of it."""

from axcore.ops.grouped_matmul.contract import GROUPED_MATMUL_TEST_CASES, GroupedMatmulTestCase
from axcore.ops.grouped_matmul.kernels import (
    grouped_matmul_portable_backward,
    grouped_matmul_reference,
)
from axcore.ops.grouped_matmul.op import GROUPED_MATMUL_OP
from axcore.testing.contracts import Case, OpContract, backward_contract

__all__ = [
    "GROUPED_MATMUL",
    "GROUPED_MATMUL_BACKWARD",
    "GroupedMatmulTestCase",
    "grouped_matmul_case",
]


def grouped_matmul_case(sample: GroupedMatmulTestCase) -> Case:
    """Return the case of a sample."""
    return Case(
        name=sample.name, make=lambda dtype: (sample.make(dtype), None), call=GROUPED_MATMUL_OP.call
    )


GROUPED_MATMUL = OpContract(
    op=GROUPED_MATMUL_OP,
    reference=grouped_matmul_reference,
    forward=grouped_matmul_reference,
    backward=grouped_matmul_portable_backward,
    cases=tuple(grouped_matmul_case(sample) for sample in GROUPED_MATMUL_TEST_CASES),
    model_cases=tuple(
        grouped_matmul_case(
            GroupedMatmulTestCase(
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

GROUPED_MATMUL_BACKWARD = backward_contract(GROUPED_MATMUL)
