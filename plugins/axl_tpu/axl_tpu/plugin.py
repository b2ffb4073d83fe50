"""What axl-tpu brings to axcore. Imports no jax."""

from collections.abc import Iterator

from axcore.plugins import (
    AotTarget,
    CompilerOptions,
    DoctorCheck,
    HardwareFamily,
    Kernel,
    MeshRule,
    Ref,
    hook,
    on,
)
from axl_tpu.hardware import MEGABLOX, PALLAS, SPLASH, hosts

WIDE_VMEM = ("v5e", "v5p", "v6e", "7x")
"""Generations with 64 MiB of VMEM or more; others have 16."""

PINNED = 10
"""For kernels that serve only where they are asked for by name."""


@hook.hardware_families
def hardware_families() -> Iterator[HardwareFamily]:
    """Cloud TPUs."""
    yield HardwareFamily(
        name="tpu",
        hosts=hosts(),
        detect=Ref("axl_tpu.detect:detect"),
        summary="Cloud TPUs in hosts of four chips",
    )


@hook.aot_targets
def aot_targets() -> Iterator[AotTarget]:
    """libtpu compiles for slices that are not here."""
    yield AotTarget(
        name="libtpu",
        on=on(family="tpu"),
        devices=Ref("axl_tpu.aot:devices"),
        environment=Ref("axl_tpu.topology:environment"),
        modules=("libtpu",),
        install="axl-tpu[aot]",
        summary="XLA's compiler for TPUs, in libtpu",
    )


@hook.compiler_options
def compiler_options() -> Iterator[CompilerOptions]:
    """How libtpu is asked to schedule."""
    yield CompilerOptions(
        name="gather_under_products",
        on=on(family="tpu"),
        fn=Ref("axl_tpu.compiler:gather_under_products"),
        summary="Sharded weights are gathered under products",
    )
    yield CompilerOptions(
        name="wide_fusions",
        on=on(family="tpu", generation=("v5e", "v5p", "v6e", "7x")),
        fn=Ref("axl_tpu.compiler:wide_fusions"),
        summary="Fusions may hold more of their operands on the chip",
    )


@hook.mesh_rules
def mesh_rules() -> Iterator[MeshRule]:
    """Fully sharded over all chips."""
    yield MeshRule(match="tpu-*", mesh={"fsdp": -1})


@hook.kernels
def kernels() -> Iterator[Kernel]:
    """The Pallas kernels that JAX ships, and our own."""
    yield Kernel(
        op="attention",
        name="splash_attention",
        priority=200,
        on=on(family="tpu", features=SPLASH),
        accepts=Ref("axl_tpu.splash_attention:accepts"),
        fn=Ref("axl_tpu.splash_attention:splash_attention"),
        tiles=Ref("axl_tpu.splash_attention:TILES"),
    )
    yield Kernel(
        op="attention",
        name="tpu_flash_attention",
        priority=220,
        on=on(family="tpu", features=PALLAS),
        accepts=Ref("axl_tpu.kernels.attention:accepts"),
        fn=Ref("axl_tpu.kernels.attention:tpu_flash_attention"),
        tiles=Ref("axl_tpu.kernels.attention_tiles:TILES"),
    )
    yield Kernel(
        op="attention_backward",
        name="tpu_flash_attention",
        priority=220,
        on=on(family="tpu", features=PALLAS),
        accepts=Ref("axl_tpu.kernels.attention:accepts"),
        fn=Ref("axl_tpu.kernels.attention:flash_attention_backward"),
        tiles=Ref("axl_tpu.kernels.attention_tiles:BACKWARD_TILES"),
    )
    yield Kernel(
        op="grouped_matmul",
        name="megablox",
        priority=200,
        on=on(family="tpu", features=MEGABLOX),
        accepts=Ref("axl_tpu.megablox:accepts"),
        fn=Ref("axl_tpu.megablox:megablox"),
    )
    yield Kernel(
        op="grouped_matmul",
        name="tpu_grouped_matmul",
        priority=220,
        on=on(family="tpu", generation=WIDE_VMEM, features=PALLAS),
        accepts=Ref("axl_tpu.kernels.grouped_matmul:accepts"),
        fn=Ref("axl_tpu.kernels.grouped_matmul:tpu_grouped_matmul"),
        tiles=Ref("axl_tpu.kernels.grouped_tiles:TILES"),
    )
    yield Kernel(
        op="decode_attention",
        name="tpu_decode_attention",
        priority=200,
        on=on(family="tpu", features=PALLAS),
        accepts=Ref("axl_tpu.kernels.decode_attention:accepts"),
        fn=Ref("axl_tpu.kernels.decode_attention:tpu_decode_attention"),
        tiles=Ref("axl_tpu.kernels.decode_attention:TILES"),
    )
    yield Kernel(
        op="cross_entropy",
        name="tpu_cross_entropy",
        priority=PINNED,
        on=on(family="tpu", generation=WIDE_VMEM, features=PALLAS),
        accepts=Ref("axl_tpu.kernels.cross_entropy:accepts"),
        fn=Ref("axl_tpu.kernels.cross_entropy:tpu_cross_entropy"),
        tiles=Ref("axl_tpu.kernels.cross_entropy_tiles:TILES"),
    )
    yield Kernel(
        op="rms_norm",
        name="tpu_rms_norm",
        priority=PINNED,
        on=on(family="tpu", features=PALLAS),
        accepts=Ref("axl_tpu.kernels.rms_norm:accepts"),
        fn=Ref("axl_tpu.kernels.rms_norm:tpu_rms_norm"),
        tiles=Ref("axl_tpu.kernels.rms_norm:TILES"),
    )


@hook.doctor_checks
def doctor_checks() -> Iterator[DoctorCheck]:
    """Is JAX able to reach a TPU?"""
    yield DoctorCheck(
        name="libtpu",
        fn=Ref("axl_tpu.doctor:libtpu"),
        summary="libtpu is installed",
    )
