"""What axl-cpu brings to axcore. Imports no jax."""

from collections.abc import Iterator

from axcore.plugins import DoctorCheck, Kernel, Ref, hook, requires


@hook.kernels
def kernels() -> Iterator[Kernel]:
    """What a model that serves spends its time on, where rows are few."""
    yield Kernel(
        op="decode_matmul",
        name="cpu_decode_matmul",
        summary="LLVM; weights are read once, as they are stored, in their own bits",
        priority=200,
        validated_on=("cpu",),
        requires=requires(family="cpu"),
        unsupported_reason=Ref("axl_cpu.kernels.decode_matmul.api:unsupported_reason"),
        forward=Ref("axl_cpu.kernels.decode_matmul.api:cpu_decode_matmul"),
    )
    yield Kernel(
        op="decode_attention",
        name="cpu_decode_attention",
        summary="LLVM; keys and values are read once, as they are stored",
        priority=200,
        validated_on=("cpu",),
        requires=requires(family="cpu"),
        unsupported_reason=Ref("axl_cpu.kernels.decode_attention.api:unsupported_reason"),
        forward=Ref("axl_cpu.kernels.decode_attention.api:cpu_decode_attention"),
    )


@hook.doctor_checks
def doctor_checks() -> Iterator[DoctorCheck]:
    """Can LLVM compile for this processor?"""
    yield DoctorCheck(
        name="llvm", fn=Ref("axl_cpu.doctor:llvm"), summary="LLVM and the size of its vectors here"
    )
