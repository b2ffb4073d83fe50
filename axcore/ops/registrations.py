"""The ops and the kernels of the core: the references, and what serves every platform."""

from collections.abc import Iterator
from typing import Any

from axcore.plugins import Kernel, Op, Ref, hook, requires


@hook.ops
def ops() -> Iterator[Op]:
    """What the core's layers ask for."""
    yield Op(
        name="attention",
        fn=Ref("axcore.ops:attention"),
        summary="Scaled dot-product attention with masks, caps, sinks and dropout",
        contract=Ref("axcore.testing.contracts:ATTENTION"),
        arg_spec=Ref("axcore.ops.attention.contract:arg_spec"),
    )
    yield Op(
        name="attention_backward",
        fn=Ref("axcore.ops.attention.op:attention_custom_vjp"),
        summary="The gradient of attention, for kernels that JAX does not differentiate",
        contract=Ref("axcore.testing.contracts:ATTENTION_BACKWARD"),
        arg_spec=Ref("axcore.ops.attention.contract:backward_arg_spec"),
    )
    yield Op(
        name="decode_attention",
        fn=Ref("axcore.ops:decode_attention"),
        summary="Attention of the newest tokens over a cache, contiguous or in pages",
        contract=Ref("axcore.testing.contracts:DECODE_ATTENTION"),
        arg_spec=Ref("axcore.ops.decode_attention.contract:arg_spec"),
    )
    yield Op(
        name="decode_matmul",
        fn=Ref("axcore.ops:decode_matmul"),
        summary="A few rows times a weight, in full or low precision",
        contract=Ref("axcore.testing.contracts:DECODE_MATMUL"),
        arg_spec=Ref("axcore.ops.decode_matmul.contract:arg_spec"),
    )
    yield Op(
        name="cross_entropy",
        fn=Ref("axcore.ops:cross_entropy"),
        summary="Next-token loss without the full logits in memory",
        contract=Ref("axcore.testing.contracts:CROSS_ENTROPY"),
        arg_spec=Ref("axcore.ops.cross_entropy.contract:arg_spec"),
    )
    yield Op(
        name="cross_entropy_backward",
        fn=Ref("axcore.ops.cross_entropy.op:cross_entropy_custom_vjp"),
        summary="The gradient of cross_entropy, for kernels that JAX does not differentiate",
        contract=Ref("axcore.testing.contracts:CROSS_ENTROPY_BACKWARD"),
        arg_spec=Ref("axcore.ops.cross_entropy.contract:backward_arg_spec"),
    )
    yield Op(
        name="rms_norm",
        fn=Ref("axcore.ops:rms_norm"),
        summary="Normalisation by the root of the mean square",
        contract=Ref("axcore.testing.contracts:RMS_NORM"),
        arg_spec=Ref("axcore.ops.rms_norm.contract:arg_spec"),
    )
    yield Op(
        name="rms_norm_backward",
        fn=Ref("axcore.ops.rms_norm.op:RMS_NORM_OP.custom_vjp"),
        summary="The gradient of rms_norm, for kernels that JAX does not differentiate",
        contract=Ref("axcore.testing.contracts:RMS_NORM_BACKWARD"),
        arg_spec=Ref("axcore.ops.rms_norm.contract:backward_arg_spec"),
    )
    yield Op(
        name="rope",
        fn=Ref("axcore.ops:rope"),
        summary="Rotary positions: pairs of a head's dimensions, rotated",
        contract=Ref("axcore.testing.contracts:ROPE"),
        arg_spec=Ref("axcore.ops.rope.contract:arg_spec"),
    )
    yield Op(
        name="grouped_matmul",
        fn=Ref("axcore.ops:grouped_matmul"),
        summary="Rows sorted by group, each group with a matrix of its own",
        contract=Ref("axcore.testing.contracts:GROUPED_MATMUL"),
        arg_spec=Ref("axcore.ops.grouped_matmul.contract:arg_spec"),
    )
    yield Op(
        name="grouped_matmul_backward",
        fn=Ref("axcore.ops.grouped_matmul.op:GROUPED_MATMUL_OP.custom_vjp"),
        summary="The gradient of grouped_matmul, for kernels that JAX does not differentiate",
        contract=Ref("axcore.testing.contracts:GROUPED_MATMUL_BACKWARD"),
        arg_spec=Ref("axcore.ops.grouped_matmul.contract:backward_arg_spec"),
    )
    yield Op(
        name="quantized_dot",
        fn=Ref("axcore.ops:quantized_dot"),
        summary="Products of int8 or float8 operands, and those of its gradients",
        contract=Ref("axcore.testing.contracts:QUANTIZED_DOT"),
    )


@hook.kernels
def kernels() -> Iterator[Kernel]:
    """What serves every platform, and the references that define what the ops mean."""
    yield _reference("attention", "axcore.ops.attention.kernels:attention_reference")
    yield _portable(
        "attention",
        "axcore.ops.attention.kernels:attention_portable",
        "Chunks with an online softmax; memory linear in the length",
        is_differentiable=True,
    )
    yield _portable(
        "attention",
        "axcore.ops.attention.blockwise:blockwise_forward",
        "Blocks with an online softmax",
        name="blockwise",
        pinned_only="a part of the portable kernel, kept for comparison",
    )
    yield _portable(
        "attention_backward",
        "axcore.ops.attention.blockwise:blockwise_backward",
        "Gradients from the output and its log-sum-exp",
    )
    yield _reference(
        "decode_attention", "axcore.ops.decode_attention.kernels:decode_attention_reference"
    )
    yield _portable(
        "decode_attention",
        "axcore.ops.decode_attention.kernels:decode_attention_portable",
        "Contiguous and paged caches, in blocks of keys",
        is_differentiable=True,
        validated_on=("cpu",),
        block_sizes=Ref("axcore.ops.decode_attention.kernels:BLOCK_SIZES"),
    )
    yield _reference("decode_matmul", "axcore.ops.decode_matmul.kernels:decode_matmul_reference")
    yield _portable(
        "decode_matmul",
        "axcore.ops.decode_matmul.kernels:decode_matmul_portable",
        "Plain JAX; a low-precision weight is converted in the product",
        is_differentiable=True,
        validated_on=("*",),  # XLA's own products
    )
    yield _reference("cross_entropy", "axcore.ops.cross_entropy.kernels:cross_entropy_reference")
    yield _portable(
        "cross_entropy",
        "axcore.ops.cross_entropy.kernels:cross_entropy_portable",
        "Chunks of tokens and of the vocabulary",
        is_differentiable=True,
    )
    yield _portable(
        "cross_entropy_backward",
        "axcore.ops.cross_entropy.kernels:cross_entropy_portable_backward",
        "Gradients in chunks of tokens",
    )
    yield _reference("rms_norm", "axcore.ops.rms_norm.kernels:rms_norm_reference")
    yield _portable(
        "rms_norm",
        "axcore.ops.rms_norm.kernels:rms_norm_portable",
        "Plain JAX, which compilers fuse into what surrounds it",
        is_differentiable=True,
    )
    yield _portable(
        "rms_norm_backward",
        "axcore.ops.rms_norm.kernels:rms_norm_portable_backward",
        "Gradients from the inputs",
    )
    yield _reference("rope", "axcore.ops.rope.kernels:rope_reference")
    yield _portable(
        "rope",
        "axcore.ops.rope.kernels:rope_portable",
        "Plain JAX, which compilers fuse into what surrounds it",
        is_differentiable=True,
        validated_on=("*",),  # no chip needs another program
    )
    yield _reference("grouped_matmul", "axcore.ops.grouped_matmul.kernels:grouped_matmul_reference")
    yield _portable(
        "grouped_matmul",
        "axcore.ops.grouped_matmul.kernels:grouped_matmul_portable",
        "Blocks of rows, padded by group",
        backward=Ref("axcore.ops.grouped_matmul.kernels:grouped_matmul_portable_backward"),
        block_sizes=Ref("axcore.ops.grouped_matmul.kernels:BLOCK_SIZES"),
    )
    yield _portable(
        "quantized_dot",
        "axcore.ops.quantized.kernels:emulated_matmul",
        "Any format, in float32",
        name="emulated",
        priority=0,
    )
    for name in ("int8", "float8"):
        yield _portable(
            "quantized_dot",
            f"axcore.ops.quantized.kernels:{name}_matmul",
            "XLA's own product of the format",
            name=name,
            validated_on=("*",),  # XLA's own product, run wherever hardware has the format
            requires=requires(features=name),
            unsupported_reason=Ref(f"axcore.ops.quantized.kernels:{name}_unsupported_reason"),
        )


def _reference(op: str, target: str) -> Kernel:
    summary = "What the op means, in float32"
    return _portable(op, target, summary, name="reference", priority=0, is_differentiable=True)


def _portable(op: str, target: str, summary: str, **values: Any) -> Kernel:
    """Return a kernel in plain jnp, which the compiler partitions over a mesh."""
    defaults: dict[str, Any] = {"name": "portable", "priority": 50, "partitioned_by": "compiler"}
    return Kernel(op=op, forward=Ref(target), summary=summary, **defaults | values)
