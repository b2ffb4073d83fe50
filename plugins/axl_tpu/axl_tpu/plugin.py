"""What axl-tpu brings to axcore. Imports no jax."""

from collections.abc import Iterator

from axcore.plugins import DoctorCheck, HardwareFamily, Kernel, MeshRule, Ref, hook, on
from axl_tpu.hardware import MEGABLOX, SPLASH, hosts


@hook.hardware_families
def hardware_families() -> Iterator[HardwareFamily]:
    """Cloud TPUs."""
    yield HardwareFamily(
        name="tpu",
        hosts=hosts(),
        detect=Ref("axl_tpu.detect:detect"),
        summary="Cloud TPUs in hosts of four chips",
    )


@hook.mesh_rules
def mesh_rules() -> Iterator[MeshRule]:
    """Fully sharded over all chips."""
    yield MeshRule(match="tpu-*", mesh={"fsdp": -1})


@hook.kernels
def kernels() -> Iterator[Kernel]:
    """The Pallas kernels that JAX ships."""
    yield Kernel(
        op="attention",
        name="splash_attention",
        priority=200,
        on=on(family="tpu", features=SPLASH),
        accepts=Ref("axl_tpu.splash_attention:accepts"),
        fn=Ref("axl_tpu.splash_attention:splash_attention"),
    )
    yield Kernel(
        op="grouped_matmul",
        name="megablox",
        priority=200,
        on=on(family="tpu", features=MEGABLOX),
        accepts=Ref("axl_tpu.megablox:accepts"),
        fn=Ref("axl_tpu.megablox:megablox"),
    )


@hook.doctor_checks
def doctor_checks() -> Iterator[DoctorCheck]:
    """Is JAX able to reach a TPU?"""
    yield DoctorCheck(
        name="libtpu",
        fn=Ref("axl_tpu.doctor:libtpu"),
        summary="libtpu is installed",
    )
