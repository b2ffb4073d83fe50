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
    requires,
)
from axl_gpu.hardware import CUDNN, CUDNN_HOPPER, WGMMA, hosts

HOPPER_CHIPS = ("gpu-h100", "gpu-h200")
CUDNN_CHIPS = ("gpu-a100*", *HOPPER_CHIPS, "gpu-b200")
"""Where the library's own authors run and time it."""

MEASURED = ("gpu-h100", "gpu-h200")
"""Where our own kernels passed their suite and were timed: `benchmarks/results/gpu_h*.json`."""


@hook.hardware_families
def hardware_families() -> Iterator[HardwareFamily]:
    """NVIDIA data-centre GPUs."""
    yield HardwareFamily(
        name="gpu",
        hosts=hosts(),
        detect=Ref("axl_gpu.detect:detect"),
        present=Ref("axl_gpu.detect:present"),
        install="axl-gpu[cuda13]",
        summary="NVIDIA data-centre GPUs in hosts of eight",
    )


@hook.aot_targets
def aot_targets() -> Iterator[AotTarget]:
    """XLA's CUDA compiler needs no GPU, only a description of one."""
    yield AotTarget(
        name="cuda",
        requires=requires(family="gpu"),
        devices=Ref("axl_gpu.compiler:devices"),
        environment=Ref("axl_gpu.compiler:environment"),
        modules=("absl", "jax_cuda13_plugin", "nvidia.cu13", "nvidia.cudnn"),
        install="axl-gpu[aot]",
        summary="XLA's compiler for CUDA, with NVIDIA's assembler and cuDNN",
    )


@hook.compiler_options
def compiler_options() -> Iterator[CompilerOptions]:
    """How XLA is asked to schedule."""
    yield CompilerOptions(
        name="transfers_under_products",
        requires=requires(family="gpu"),
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
        summary="cuDNN's flash attention; widths to 128; segments as a bias",
        priority=200,
        validated_on=CUDNN_CHIPS,
        preferred_to=("gpu_flash_attention",),
        requires=requires(family="gpu", features=CUDNN),
        unsupported_reason=Ref("axl_gpu.kernels.attention.cudnn:unsupported_reason"),
        forward=Ref("axl_gpu.kernels.attention.cudnn:cudnn_attention"),
        is_differentiable=True,
    )
    yield Kernel(
        op="attention",
        name="cudnn_wide_attention",
        summary="cuDNN's for widths to 256, and values of another width",
        priority=200,
        validated_on=HOPPER_CHIPS,
        preferred_to=("gpu_flash_attention",),
        requires=requires(family="gpu", features=CUDNN_HOPPER),
        unsupported_reason=Ref("axl_gpu.kernels.attention.cudnn:wide_unsupported_reason"),
        forward=Ref("axl_gpu.kernels.attention.cudnn:cudnn_attention"),
        is_differentiable=True,
    )
    yield Kernel(
        op="attention",
        name="cudnn_packed_attention",
        summary="cuDNN's by lengths and offsets of documents, without a bias",
        priority=200,
        validated_on=HOPPER_CHIPS,
        pinned_only="it trusts that documents are packed: a row where they are not gives NaN",
        requires=requires(family="gpu", features=CUDNN_HOPPER),
        unsupported_reason=Ref("axl_gpu.kernels.attention.cudnn_packed:unsupported_reason"),
        forward=Ref("axl_gpu.kernels.attention.cudnn_packed:cudnn_packed_attention"),
        is_differentiable=True,
    )
    yield Kernel(
        op="attention",
        name="gpu_flash_attention",
        summary="Mosaic GPU; hidden blocks are neither read nor computed; no bias or dropout",
        priority=200,
        validated_on=MEASURED,
        requires=requires(family="gpu", features=WGMMA),
        unsupported_reason=Ref("axl_gpu.kernels.attention.api:unsupported_reason"),
        forward=Ref("axl_gpu.kernels.attention.api:gpu_flash_attention"),
        block_sizes=Ref("axl_gpu.kernels.attention.block_sizes:FORWARD_BLOCK_SIZES"),
    )
    yield Kernel(
        op="attention",
        name="gpu_packed_flash_attention",
        summary="The same, where cuDNN's bias would be larger than the queries",
        priority=200,
        validated_on=MEASURED,
        preferred_to=("cudnn_attention", "cudnn_wide_attention", "gpu_flash_attention"),
        requires=requires(family="gpu", features=WGMMA),
        unsupported_reason=Ref("axl_gpu.kernels.attention.api:packed_unsupported_reason"),
        forward=Ref("axl_gpu.kernels.attention.api:gpu_flash_attention"),
    )
    yield Kernel(
        op="attention_backward",
        name="gpu_flash_attention",
        summary="Mosaic GPU; a pass by queries and one by keys, or one kernel of both",
        priority=200,
        validated_on=MEASURED,
        requires=requires(family="gpu", features=WGMMA),
        unsupported_reason=Ref("axl_gpu.kernels.attention.api:unsupported_reason"),
        forward=Ref("axl_gpu.kernels.attention.api:gpu_flash_attention_backward"),
        block_sizes=Ref("axl_gpu.kernels.attention.block_sizes:BACKWARD_BLOCK_SIZES"),
    )
    yield Kernel(
        op="grouped_matmul",
        name="mosaic_grouped_matmul",
        summary="JAX's Mosaic GPU kernel, with our gradient of matrices",
        priority=200,
        validated_on=MEASURED,
        requires=requires(family="gpu", features=WGMMA),
        unsupported_reason=Ref("axl_gpu.kernels.grouped_matmul.mosaic:unsupported_reason"),
        forward=Ref("axl_gpu.kernels.grouped_matmul.mosaic:mosaic_grouped_matmul"),
        backward=Ref("axl_gpu.kernels.grouped_matmul.mosaic:mosaic_grouped_matmul_backward"),
    )
    yield Kernel(
        op="grouped_matmul",
        name="gpu_grouped_matmul",
        summary="Mosaic GPU; any number of rows",
        priority=200,
        validated_on=MEASURED,
        preferred_to=("mosaic_grouped_matmul",),
        requires=requires(family="gpu", features=WGMMA),
        unsupported_reason=Ref("axl_gpu.kernels.grouped_matmul.api:unsupported_reason"),
        forward=Ref("axl_gpu.kernels.grouped_matmul.api:gpu_grouped_matmul"),
        backward=Ref("axl_gpu.kernels.grouped_matmul.api:gpu_grouped_matmul_backward"),
        block_sizes=Ref("axl_gpu.kernels.grouped_matmul.api:BLOCK_SIZES"),
    )
    yield Kernel(
        op="decode_attention",
        name="gpu_decode_attention",
        summary="Mosaic GPU; split over keys; 16 or 8 bits; prompts by `gpu_flash_attention`",
        priority=200,
        validated_on=MEASURED,
        requires=requires(family="gpu", features=WGMMA),
        unsupported_reason=Ref("axl_gpu.kernels.decode.api:unsupported_reason"),
        forward=Ref("axl_gpu.kernels.decode.api:gpu_decode_attention"),
        block_sizes=Ref("axl_gpu.kernels.decode.api:BLOCK_SIZES"),
    )
    yield Kernel(
        op="cross_entropy",
        name="gpu_cross_entropy",
        summary="Mosaic GPU; no logit is written to memory",
        priority=200,
        validated_on=MEASURED,
        pinned_only="an H100's train step took 4 % longer with it, though it is faster by itself",
        requires=requires(family="gpu", features=WGMMA),
        unsupported_reason=Ref("axl_gpu.kernels.cross_entropy.api:unsupported_reason"),
        forward=Ref("axl_gpu.kernels.cross_entropy.api:gpu_cross_entropy"),
        backward=Ref("axl_gpu.kernels.cross_entropy.api:gpu_cross_entropy_backward"),
        block_sizes=Ref("axl_gpu.kernels.cross_entropy.api:BLOCK_SIZES"),
    )
    yield Kernel(
        op="rms_norm",
        name="gpu_rms_norm",
        summary="Mosaic GPU; a row in the registers of a warp group",
        priority=200,
        validated_on=MEASURED,
        pinned_only="XLA fuses the portable kernel into what surrounds it",
        requires=requires(family="gpu", features=WGMMA),
        unsupported_reason=Ref("axl_gpu.kernels.rms_norm.api:unsupported_reason"),
        forward=Ref("axl_gpu.kernels.rms_norm.api:gpu_rms_norm"),
        backward=Ref("axl_gpu.kernels.rms_norm.api:gpu_rms_norm_backward"),
        block_sizes=Ref("axl_gpu.kernels.rms_norm.api:BLOCK_SIZES"),
    )
    yield Kernel(
        op="quantized_dot",
        name="gpu_float8_matmul",
        summary="Mosaic GPU; both operands of one float8 format",
        priority=200,
        # No `validated_on`, though it passed on MEASURED and is faster by itself: it would become
        # the default of every step in float8, and no step was timed with it. There XLA also merges
        # small products of one input, if they are its own.
        requires=requires(family="gpu", features=WGMMA),
        unsupported_reason=Ref("axl_gpu.kernels.matmul.float8:unsupported_reason"),
        forward=Ref("axl_gpu.kernels.matmul.float8:gpu_float8_matmul"),
        block_sizes=Ref("axl_gpu.kernels.matmul.float8:BLOCK_SIZES"),
    )


@hook.features
def features() -> Iterator[Feature]:
    """What these GPUs add to any model."""
    yield Feature(
        name="fp8",
        apply=Ref("axl_gpu.features:with_fp8"),
        evidence=Ref("axl_gpu.features:has_fp8"),
        target="gpu-h100-8",
        variant_of="low_precision",
        summary="Linear layers' products in float8",
    )
    yield Feature(
        name="cudnn_attention",
        evidence=Ref("axl_gpu.features:has_cudnn_attention"),
        implementation=tuple(
            f"axl_gpu.kernels.attention.{part}" for part in ("cudnn", "cudnn_call", "cudnn_packed")
        ),
        target="gpu-h100-8",
        summary="A new kernel: cuDNN attention where a GPU has it",
    )


@hook.doctor_checks
def doctor_checks() -> Iterator[DoctorCheck]:
    """Is JAX able to reach a GPU?"""
    yield DoctorCheck(
        name="cuda-packages",
        fn=Ref("axl_gpu.detect:cuda_packages"),
        summary="JAX's CUDA plugin is installed, once",
    )
