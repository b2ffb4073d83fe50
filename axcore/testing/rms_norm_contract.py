"""What `rms_norm` promises: its contract, for kernels of it."""

from typing import Any

from axcore.ops.call import Call
from axcore.ops.rms_norm import rms_norm_call
from axcore.ops.rms_norm_reference import rms_norm_reference
from axcore.ops.rms_norm_samples import RMS_NORM_SAMPLES, RmsNormInputs, RmsNormSample
from axcore.testing.contracts import Case, OpContract

__all__ = ["RMS_NORM", "RmsNormSample", "rms_norm_case"]


def _call(inputs: RmsNormInputs, spec: tuple[float, float]) -> Call:
    return rms_norm_call(*inputs, *spec)


def _run(kernel: Any, inputs: RmsNormInputs, spec: tuple[float, float]) -> Any:
    return kernel(*inputs, *spec)


def rms_norm_case(sample: RmsNormSample) -> Case:
    """Returns the case of a sample."""
    return Case(name=sample.name, make=sample.make, call=_call, run=_run)


RMS_NORM = OpContract(
    reference=rms_norm_reference,
    cases=tuple(rms_norm_case(sample) for sample in RMS_NORM_SAMPLES),
    model_cases=tuple(
        rms_norm_case(RmsNormSample(name=f"width_{width}", shape=(2, 4096, width)))
        for width in (2048, 4096, 8192)
    ),
)
