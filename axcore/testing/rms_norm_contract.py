"""What `rms_norm` promises: its contract, for kernels of it."""

from axcore.ops.rms_norm.contract import RMS_NORM_TEST_CASES, RmsNormTestCase
from axcore.ops.rms_norm.kernels import rms_norm_portable_backward, rms_norm_reference
from axcore.ops.rms_norm.op import RMS_NORM_OP
from axcore.testing.contracts import Case, OpContract, backward_contract

__all__ = ["RMS_NORM", "RMS_NORM_BACKWARD", "RmsNormTestCase", "rms_norm_case"]


def rms_norm_case(sample: RmsNormTestCase) -> Case:
    """Return the case of a sample."""
    return Case(name=sample.name, make=sample.make, call=RMS_NORM_OP.call)


RMS_NORM = OpContract(
    op=RMS_NORM_OP,
    reference=rms_norm_reference,
    forward=rms_norm_reference,
    backward=rms_norm_portable_backward,
    cases=tuple(rms_norm_case(sample) for sample in RMS_NORM_TEST_CASES),
    model_cases=tuple(
        rms_norm_case(RmsNormTestCase(name=f"width_{width}", shape=(2, 4096, width)))
        for width in (2048, 4096, 8192)
    ),
)

RMS_NORM_BACKWARD = backward_contract(RMS_NORM)
