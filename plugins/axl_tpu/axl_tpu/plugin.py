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
    requires,
)
from axl_tpu.hardware import MEGABLOX, PALLAS, SPLASH, hosts

WIDE_VMEM = ("v5e", "v5p", "v6e", "7x")
"""Generations with 64 MiB of VMEM or more; others have 16."""

LIBRARY_CHIPS = ("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e")
"""Where the authors of JAX's own kernels run and time them."""


@hook.hardware_families
def hardware_families() -> Iterator[HardwareFamily]:
    """Cloud TPUs."""
    yield HardwareFamily(
        name="tpu",
        hosts=hosts(),
        detect=Ref("axl_tpu.detect:detect"),
        present=Ref("axl_tpu.detect:present"),
        install="axl-tpu[tpu]",
        summary="Cloud TPUs in hosts of four chips",
    )


@hook.aot_targets
def aot_targets() -> Iterator[AotTarget]:
    """libtpu compiles for slices you do not have."""
    yield AotTarget(
        name="libtpu",
        requires=requires(family="tpu"),
        devices=Ref("axl_tpu.compiler:devices"),
        environment=Ref("axl_tpu.compiler:environment"),
        modules=("libtpu",),
        install="axl-tpu[aot]",
        summary="XLA's compiler for TPUs, in libtpu",
    )


@hook.compiler_options
def compiler_options() -> Iterator[CompilerOptions]:
    """How libtpu is asked to schedule."""
    yield CompilerOptions(
        name="gather_under_products",
        requires=requires(family="tpu"),
        fn=Ref("axl_tpu.compiler:gather_under_products"),
        summary="Sharded weights are gathered under products",
    )
    yield CompilerOptions(
        name="sum_under_products",
        requires=requires(family="tpu"),
        fn=Ref("axl_tpu.compiler:sum_under_products"),
        summary="Gradients are summed over chips under products",
    )
    yield CompilerOptions(
        name="wide_fusions",
        requires=requires(family="tpu", generation=("v5e", "v5p", "v6e", "7x")),
        fn=Ref("axl_tpu.compiler:wide_fusions"),
        serves=False,
        summary="Fusions may hold more of their operands on the chip",
    )
    yield CompilerOptions(
        name="weights_ahead",
        requires=requires(family="tpu", generation=("v5e", "v5p", "v6e", "7x")),
        fn=Ref("axl_tpu.compiler:weights_ahead"),
        serves=True,
        summary="Weights are fetched ahead of products of few rows",
    )
    yield CompilerOptions(
        name="products_of_one_row",
        requires=requires(family="tpu"),
        fn=Ref("axl_tpu.compiler:products_of_one_row"),
        summary="A row times a matrix runs in the matrix unit",
    )
    yield CompilerOptions(
        name="repeated_programs",
        requires=requires(family="tpu"),
        fn=Ref("axl_tpu.sdc_checker:repeated_programs"),
        summary="Each program is repeated and compared, where AXL_TPU_SDC_REPEATS asks for it",
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
        summary="JAX's splash attention; as many keys as queries, in multiples of 128",
        priority=200,
        validated_on=LIBRARY_CHIPS,
        requires=requires(family="tpu", features=SPLASH),
        unsupported_reason=Ref("axl_tpu.kernels.attention.splash:unsupported_reason"),
        forward=Ref("axl_tpu.kernels.attention.splash:splash_attention"),
        is_differentiable=True,
        block_sizes=Ref("axl_tpu.kernels.attention.splash:BLOCK_SIZES"),
    )
    yield Kernel(
        op="attention",
        name="tpu_flash_attention",
        summary="Pallas; hidden blocks are neither read nor computed; no bias",
        priority=200,
        preferred_to=("splash_attention",),
        requires=requires(family="tpu", features=PALLAS),
        unsupported_reason=Ref("axl_tpu.kernels.attention.api:unsupported_reason"),
        forward=Ref("axl_tpu.kernels.attention.api:tpu_flash_attention"),
        block_sizes=Ref("axl_tpu.kernels.attention.block_sizes:BLOCK_SIZES"),
    )
    yield Kernel(
        op="attention_backward",
        name="tpu_flash_attention",
        summary="Pallas; all gradients at once where their sums fit vector memory",
        priority=200,
        requires=requires(family="tpu", features=PALLAS),
        unsupported_reason=Ref("axl_tpu.kernels.attention.api:unsupported_reason"),
        forward=Ref("axl_tpu.kernels.attention.api:tpu_flash_attention_backward"),
        block_sizes=Ref("axl_tpu.kernels.attention.block_sizes:BACKWARD_BLOCK_SIZES"),
    )
    yield Kernel(
        op="grouped_matmul",
        name="megablox",
        summary="JAX's megablox, `gmm` and `tgmm`",
        priority=200,
        validated_on=LIBRARY_CHIPS,
        requires=requires(family="tpu", features=MEGABLOX),
        unsupported_reason=Ref("axl_tpu.kernels.grouped_matmul.megablox:unsupported_reason"),
        forward=Ref("axl_tpu.kernels.grouped_matmul.megablox:megablox"),
        backward=Ref("axl_tpu.kernels.grouped_matmul.megablox:megablox_backward"),
    )
    yield Kernel(
        op="grouped_matmul",
        name="tpu_grouped_matmul",
        summary="Pallas; rows are neither padded nor copied",
        priority=200,
        preferred_to=("megablox",),
        requires=requires(family="tpu", generation=WIDE_VMEM, features=PALLAS),
        unsupported_reason=Ref("axl_tpu.kernels.grouped_matmul.api:unsupported_reason"),
        forward=Ref("axl_tpu.kernels.grouped_matmul.api:tpu_grouped_matmul"),
        backward=Ref("axl_tpu.kernels.grouped_matmul.api:tpu_grouped_matmul_backward"),
        block_sizes=Ref("axl_tpu.kernels.grouped_matmul.block_sizes:BLOCK_SIZES"),
    )
    yield Kernel(
        op="decode_attention",
        name="tpu_decode_attention",
        summary="Pallas; of the cache only what a row's queries see is read",
        priority=200,
        requires=requires(family="tpu", features=PALLAS),
        unsupported_reason=Ref("axl_tpu.kernels.decode.api:unsupported_reason"),
        forward=Ref("axl_tpu.kernels.decode.api:tpu_decode_attention"),
        block_sizes=Ref("axl_tpu.kernels.decode.api:BLOCK_SIZES"),
    )
    yield Kernel(
        op="decode_attention",
        name="tpu_prompt_attention",
        summary="Many queries of a row, by `tpu_flash_attention` over a copy of its keys",
        priority=200,
        requires=requires(family="tpu", features=PALLAS),
        unsupported_reason=Ref("axl_tpu.kernels.decode.prompt:unsupported_reason"),
        forward=Ref("axl_tpu.kernels.decode.prompt:tpu_prompt_attention"),
    )
    yield Kernel(
        op="cross_entropy",
        name="tpu_cross_entropy",
        summary="Pallas; no logit is ever in memory",
        priority=200,
        pinned_only="v4 is too small for it, and the portable kernel must work there by default",
        requires=requires(family="tpu", generation=WIDE_VMEM, features=PALLAS),
        unsupported_reason=Ref("axl_tpu.kernels.cross_entropy.api:unsupported_reason"),
        forward=Ref("axl_tpu.kernels.cross_entropy.api:tpu_cross_entropy"),
        backward=Ref("axl_tpu.kernels.cross_entropy.api:tpu_cross_entropy_backward"),
        block_sizes=Ref("axl_tpu.kernels.cross_entropy.block_sizes:BLOCK_SIZES"),
    )
    yield Kernel(
        op="rope",
        name="tpu_rope",
        summary="Pallas; heads of full registers, read and written where they are stored",
        priority=200,
        requires=requires(family="tpu", features=PALLAS),
        unsupported_reason=Ref("axl_tpu.kernels.rope.api:unsupported_reason"),
        forward=Ref("axl_tpu.kernels.rope.api:tpu_rope"),
    )
    yield Kernel(
        op="rms_norm",
        name="tpu_rms_norm",
        summary="Pallas; one pass over the rows",
        priority=200,
        pinned_only="XLA fuses the portable kernel into what surrounds it",
        requires=requires(family="tpu", features=PALLAS),
        unsupported_reason=Ref("axl_tpu.kernels.rms_norm.api:unsupported_reason"),
        forward=Ref("axl_tpu.kernels.rms_norm.api:tpu_rms_norm"),
        backward=Ref("axl_tpu.kernels.rms_norm.api:tpu_rms_norm_backward"),
        block_sizes=Ref("axl_tpu.kernels.rms_norm.api:BLOCK_SIZES"),
    )


@hook.doctor_checks
def doctor_checks() -> Iterator[DoctorCheck]:
    """Is JAX able to reach a TPU?"""
    yield DoctorCheck(
        name="libtpu",
        fn=Ref("axl_tpu.detect:libtpu"),
        summary="libtpu is installed",
    )
