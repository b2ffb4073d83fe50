"""What axl-gpu brings to axcore. Imports no jax."""

from collections.abc import Iterator

from axcore.plugins import (
    AotTarget,
    CompilerOptions,
    DoctorCheck,
    Feature,
    HardwareFamily,
    Kernel,
    MeshRule,
    Ref,
    hook,
    on,
)
from axl_gpu.hardware import CUDNN, CUDNN_HOPPER, WGMMA, hosts


@hook.hardware_families
def hardware_families() -> Iterator[HardwareFamily]:
    """NVIDIA data-centre GPUs."""
    yield HardwareFamily(
        name="gpu",
        hosts=hosts(),
        detect=Ref("axl_gpu.detect:detect"),
        present=Ref("axl_gpu.detect:present"),
        summary="NVIDIA data-centre GPUs in hosts of eight",
    )


@hook.aot_targets
def aot_targets() -> Iterator[AotTarget]:
    """XLA's CUDA compiler needs no GPU, only a description of one."""
    yield AotTarget(
        name="cuda",
        on=on(family="gpu"),
        devices=Ref("axl_gpu.aot:devices"),
        environment=Ref("axl_gpu.topology:environment"),
        modules=("absl", "jax_cuda13_plugin", "nvidia.cu13", "nvidia.cudnn"),
        install="axl-gpu[aot]",
        summary="XLA's compiler for CUDA, with NVIDIA's assembler and cuDNN",
    )


@hook.compiler_options
def compiler_options() -> Iterator[CompilerOptions]:
    """How XLA is asked to schedule."""
    yield CompilerOptions(
        name="transfers_under_products",
        on=on(family="gpu"),
        fn=Ref("axl_gpu.compiler:transfers_under_products"),
        summary="Transfers between GPUs run under computation",
    )


@hook.mesh_rules
def mesh_rules() -> Iterator[MeshRule]:
    """Fully sharded over all GPUs."""
    yield MeshRule(match="gpu-*", mesh={"fsdp": -1})


@hook.kernels
def kernels() -> Iterator[Kernel]:
    """cuDNN's flash attention, a Pallas kernel that JAX ships, and kernels of our own."""
    yield Kernel(
        op="attention",
        name="cudnn_attention",
        priority=220,
        on=on(family="gpu", features=CUDNN),
        accepts=Ref("axl_gpu.cudnn_attention:accepts"),
        fn=Ref("axl_gpu.cudnn_attention:cudnn_attention"),
    )
    yield Kernel(
        op="attention",
        name="cudnn_wide_attention",
        priority=220,
        on=on(family="gpu", features=CUDNN_HOPPER),
        accepts=Ref("axl_gpu.cudnn_attention:accepts_wide"),
        fn=Ref("axl_gpu.cudnn_attention:cudnn_attention"),
    )
    yield Kernel(
        op="attention",
        name="cudnn_packed_attention",
        priority=10,
        on=on(family="gpu", features=CUDNN_HOPPER),
        accepts=Ref("axl_gpu.cudnn_packed:accepts"),
        fn=Ref("axl_gpu.cudnn_packed:cudnn_packed_attention"),
    )
    yield Kernel(
        op="attention",
        name="gpu_flash_attention",
        priority=200,
        on=on(family="gpu", features=WGMMA),
        accepts=Ref("axl_gpu.kernels.attention:accepts"),
        fn=Ref("axl_gpu.kernels.attention:gpu_flash_attention"),
        tiles=Ref("axl_gpu.kernels.attention_tiles:FORWARD_TILES"),
    )
    yield Kernel(
        op="attention",
        name="gpu_packed_flash_attention",
        priority=240,
        on=on(family="gpu", features=WGMMA),
        accepts=Ref("axl_gpu.kernels.attention:accepts_packed"),
        fn=Ref("axl_gpu.kernels.attention:gpu_flash_attention"),
    )
    yield Kernel(
        op="attention_backward",
        name="gpu_flash_attention",
        priority=200,
        on=on(family="gpu", features=WGMMA),
        accepts=Ref("axl_gpu.kernels.attention:accepts"),
        fn=Ref("axl_gpu.kernels.attention:gpu_flash_attention_backward"),
        tiles=Ref("axl_gpu.kernels.attention_tiles:BACKWARD_TILES"),
    )
    yield Kernel(
        op="grouped_matmul",
        name="mosaic_grouped_matmul",
        priority=300,
        on=on(family="gpu", features=WGMMA),
        accepts=Ref("axl_gpu.mosaic_grouped_matmul:accepts"),
        fn=Ref("axl_gpu.mosaic_grouped_matmul:mosaic_grouped_matmul"),
    )
    yield Kernel(
        op="grouped_matmul",
        name="gpu_grouped_matmul",
        priority=10,
        on=on(family="gpu", features=WGMMA),
        accepts=Ref("axl_gpu.kernels.grouped_matmul:accepts"),
        fn=Ref("axl_gpu.kernels.grouped_matmul:gpu_grouped_matmul"),
        tiles=Ref("axl_gpu.kernels.grouped_matmul:TILES"),
    )
    yield Kernel(
        op="cross_entropy",
        name="gpu_cross_entropy",
        priority=10,
        on=on(family="gpu", features=WGMMA),
        accepts=Ref("axl_gpu.kernels.cross_entropy:accepts"),
        fn=Ref("axl_gpu.kernels.cross_entropy:gpu_cross_entropy"),
        tiles=Ref("axl_gpu.kernels.cross_entropy:TILES"),
    )
    yield Kernel(
        op="rms_norm",
        name="gpu_rms_norm",
        priority=10,
        on=on(family="gpu", features=WGMMA),
        accepts=Ref("axl_gpu.kernels.rms_norm:accepts"),
        fn=Ref("axl_gpu.kernels.rms_norm:gpu_rms_norm"),
        tiles=Ref("axl_gpu.kernels.rms_norm:TILES"),
    )
    yield Kernel(
        op="quantized_dot",
        name="gpu_float8_matmul",
        priority=10,
        on=on(family="gpu", features=WGMMA),
        accepts=Ref("axl_gpu.kernels.float8_matmul:accepts"),
        fn=Ref("axl_gpu.kernels.float8_matmul:gpu_float8_matmul"),
        tiles=Ref("axl_gpu.kernels.float8_matmul:TILES"),
    )


@hook.features
def features() -> Iterator[Feature]:
    """What these GPUs add to any model."""
    yield Feature(
        name="fp8",
        apply=Ref("axl_gpu.features:with_fp8"),
        evidence=Ref("axl_gpu.features:has_fp8"),
        target="gpu-h100-8",
        summary="Linear layers' products in float8",
    )
    yield Feature(
        name="cudnn_attention",
        evidence=Ref("axl_gpu.features:has_cudnn_attention"),
        implementation=tuple(
            f"axl_gpu.cudnn_{part}" for part in ("attention", "call", "flash", "packed")
        ),
        target="gpu-h100-8",
        summary="A new kernel: cuDNN attention where a GPU has it",
    )


@hook.doctor_checks
def doctor_checks() -> Iterator[DoctorCheck]:
    """Is JAX able to reach a GPU?"""
    yield DoctorCheck(
        name="cuda-packages",
        fn=Ref("axl_gpu.doctor:cuda_packages"),
        summary="JAX's CUDA plugin is installed, once",
    )
