"""What `rms_norm` promises: its contract, for kernels of it."""

from typing import Any

from axcore.ops.call import Call
from axcore.ops.rms_norm import rms_norm_call
from axcore.ops.rms_norm_reference import rms_norm_reference
from axcore.ops.rms_norm_samples import RMS_NORM_SAMPLES, RmsNormInputs
from axcore.testing.contracts import Case, OpContract


def _call(inputs: RmsNormInputs, spec: tuple[float, float]) -> Call:
    return rms_norm_call(*inputs, *spec)


def _run(kernel: Any, inputs: RmsNormInputs, spec: tuple[float, float]) -> Any:
    return kernel(*inputs, *spec)


RMS_NORM = OpContract(
    reference=rms_norm_reference,
    cases=tuple(
        Case(name=sample.name, make=sample.make, call=_call, run=_run)
        for sample in RMS_NORM_SAMPLES
    ),
)
