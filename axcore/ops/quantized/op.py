"""The quantized-dot op: products of low-precision operands, of one matrix or one for each group.

Each product, that of the forward pass and those of the gradients, is a call of its own, for which a
kernel is chosen.

Letters: R all leading dimensions of the input, K the width that the forward pass sums over, N the
width of the output; of grouped products R rows, E groups (experts), D input width, F output
width.
"""

from collections.abc import Mapping

import attrs
import jax
import jax.numpy as jnp
from jax import Array

from axcore.errors import KernelError
from axcore.ops.dispatch import Call
from axcore.ops.grouped_matmul.kernels import block_size
from axcore.ops.grouped_matmul.op import check_grouped
from axcore.ops.op import KernelOp, ResultSpec
from axcore.ops.plan import choose_and_record
from axcore.ops.quantized.quantize import (
    Amaxes,
    MatmulRole,
    MatmulSpec,
    Operands,
    Quantization,
    QuantizedArray,
    QuantizedDotSpec,
)
from axcore.ops.quantized.vjp import Kernels, MatmulKernel, layout_of, quantized_custom_vjp
from axcore.parallel.shard_op import OpSharding, leading_axes

QUANTIZED_DOT = "quantized_dot"


def matmul_calls(
    x_RK: tuple[int, ...],
    w_KN: tuple[int, ...],
    spec: QuantizedDotSpec,
    *,
    dtype: str,
    weight_gradient_dtype: str | None = None,
) -> dict[MatmulRole, Call]:
    """Return the call of every product that `spec` quantizes, from the shapes of its operands.

    Arrays are `lhs` and `rhs`, quantized. Features are the name of the product, that of the dtype
    of its result, `dtype`, and the grain of the scales, `lhs_per` and `rhs_per`.
    """
    x, w = (x_RK, spec.inputs), (w_KN, spec.weights)
    dy = ((*x_RK[:-1], w_KN[1]), spec.gradients)
    operands: dict[MatmulRole, tuple[_Operand, _Operand]] = {
        "forward": (x, w),
        "input_gradient": (dy, w),
    }
    if spec.weight_gradient:
        operands["weight_gradient"] = (x, dy)
    dtypes = {"weight_gradient": weight_gradient_dtype or dtype}
    return {
        name: _call(name, lhs, rhs, dtypes.get(name, dtype))
        for name, (lhs, rhs) in operands.items()
    }


_Operand = tuple[tuple[int, ...], Quantization]


def _call(product: MatmulRole, lhs: _Operand, rhs: _Operand, dtype: str) -> Call:
    operands = {"lhs": lhs, "rhs": rhs}
    return Call(
        op=QUANTIZED_DOT,
        shapes=tuple((name, shape) for name, (shape, _) in operands.items()),
        dtypes=tuple((name, how.format) for name, (_, how) in operands.items()),
        features=(
            ("product", product),
            ("dtype", dtype),
            *((f"{name}_per", how.per) for name, (_, how) in operands.items()),
        ),
    )


ROWS = ("batch", "time", "heads")

Axes = tuple[str | None, ...]


def quantized_dot_sharding(operands: Operands, spec: MatmulSpec) -> OpSharding:
    """Return how one product is split."""
    rows = (*leading_axes(operands.lhs.values.ndim - 1), None)
    if spec.product == "weight_gradient":
        return OpSharding(
            inputs=Operands(_axes(operands.lhs, rows), _axes(operands.rhs, rows)),
            outputs=(None, None),
            split=ROWS,
            combine=lambda partition, _, total: partition.summed(total, *ROWS),
        )
    return OpSharding(
        inputs=Operands(_axes(operands.lhs, rows), _axes(operands.rhs, (None, None))),
        outputs=rows,
        split=ROWS,
    )


def _axes(operand: QuantizedArray, axes: Axes) -> QuantizedArray:
    """Return the axes of an operand and of its scale, whose dimensions of size 1 are broadcast."""
    shape = operand.scale.shape
    scale: Axes = tuple(
        None if size == 1 else axis for size, axis in zip(shape, axes[: len(shape)], strict=True)
    )
    return QuantizedArray(axes, scale)  # type: ignore[arg-type]


def _results(operands: Operands, spec: MatmulSpec) -> ResultSpec:
    sides = zip(operands, spec.contracting, strict=True)
    free = [n for one, over in sides for i, n in enumerate(one.values.shape) if i not in over]
    return ResultSpec("the product", tuple(free), spec.dtype)


QUANTIZED_DOT_OP = KernelOp[Array](
    name="quantized_dot",
    inputs=Operands,
    spec=MatmulSpec,
    sharding=quantized_dot_sharding,
    results=_results,
)

FULL_PRECISION = ("bfloat16", "float16", "float32")
"""Dtypes that arrays can be quantized to."""


def quantized_dot(
    x_RK: Array,
    w_KN: Array,
    spec: QuantizedDotSpec,
    *,
    quantized_x: QuantizedArray | None = None,
    amaxes: Amaxes | None = None,
    key: Array | None = None,
) -> Array:
    """Return `x w`, `[R, N]` in x's dtype, computed from low-precision copies of both.

    Its gradients are `dy w^T` and `x^T dy` of low-precision copies too: rounding counts as the
    identity.
    Each product is a call of its own, for which a kernel is chosen: on hardware that lacks the
    format there is none, and `emulated` serves only where it is pinned.

    Args:
        x_RK: Any number of leading dimensions.
        w_KN: Of x's dtype.
        spec: How each operand is quantized.
        quantized_x: What `quantize_input` returned for `x`, for several products of one input;
            made here where None. Only with one scale per tensor.
        amaxes: Magnitudes to scale by; those of the operands themselves where None. Only with one
            scale per tensor.
        key: Random key for stochastic rounding, which rounds to nearest without one.

    Raises:
        KernelError: Shapes, dtypes or choices do not fit, or no kernel can serve a product.
    """
    _check(x_RK, w_KN, spec, amaxes)
    _check_narrow(quantized_x, x_RK, spec)
    if x_RK.ndim == 1:
        row = quantized_x and QuantizedArray(quantized_x.values[None], quantized_x.scale)
        return quantized_dot(x_RK[None], w_KN, spec, quantized_x=row, amaxes=amaxes, key=key)[0]
    calls = matmul_calls(x_RK.shape, w_KN.shape, spec, dtype=x_RK.dtype.name)
    kernels = matmul_kernels(calls)
    data = None if key is None else jax.random.key_data(key)
    return quantized_custom_vjp(
        x_RK, w_KN, spec, kernels, quantized_x=quantized_x, amaxes=amaxes, key=data
    )


def matmul_kernels(calls: Mapping[MatmulRole, Call]) -> Kernels:
    """Return the kernel chosen for each product.

    Raises:
        KernelError: No kernel can serve a product.
    """
    return {name: _matmul_kernel(call) for name, call in calls.items()}


def _matmul_kernel(call: Call) -> MatmulKernel:
    """Return the kernel chosen for a product, on full arrays.

    One that the op splits over devices gives the gradient of a weight in float32, to be summed.
    """
    record = choose_and_record(call).kernel
    kernel = QUANTIZED_DOT_OP.sharded(record, record.forward.resolve())
    kernel = QUANTIZED_DOT_OP.watched(kernel, record)

    def run(operands: Operands, spec: MatmulSpec) -> Array:
        is_summed = spec.product == "weight_gradient" and record.partitioned_by == "op"
        # What devices add up is rounded once, after the sum.
        wide = attrs.evolve(spec, dtype="float32") if is_summed else spec
        product: Array = kernel(operands, wide)
        return product.astype(spec.dtype)

    return run


def _check(x: Array, w: Array, spec: QuantizedDotSpec, amaxes: Amaxes | None) -> None:
    if x.ndim < 1 or w.ndim != 2 or x.shape[-1] != w.shape[0]:
        raise KernelError(
            f"quantized_dot: x has shape {x.shape} and w {w.shape}; expected [..., K] and [K, N]."
        )
    if not (x.dtype == w.dtype and x.dtype.name in FULL_PRECISION):
        raise KernelError(
            f"quantized_dot: dtypes are x {x.dtype} and w {w.dtype}; expected one of "
            f"{', '.join(FULL_PRECISION)} for both.",
            hint="cast both to the compute dtype before the call",
        )
    if amaxes is None:
        return
    if "channel" in (spec.inputs.per, spec.weights.per, spec.gradients.per):
        raise KernelError(
            "quantized_dot: amaxes are given for operands with a scale per channel.",
            hint="leave them out, or take one scale per tensor",
        )
    for name, amax in amaxes._asdict().items():
        if amax.shape != () or amax.dtype != jnp.float32:
            raise KernelError(
                f"quantized_dot: amaxes.{name} is {amax.dtype}{list(amax.shape)}; expected a "
                "float32 scalar."
            )


def _check_narrow(narrow: QuantizedArray | None, x: Array, spec: QuantizedDotSpec) -> None:
    if narrow is None:
        return
    if spec.inputs.per == "channel":
        raise KernelError(
            "quantized_dot: quantized_x is given for an input with a scale per channel.",
            hint="leave it out, or take one scale per tensor",
        )
    values = narrow.values
    if values.shape != x.shape or values.dtype.name != spec.inputs.format:
        raise KernelError(
            f"quantized_dot: quantized_x is {values.dtype}{list(values.shape)}; expected "
            f"{spec.inputs.format}{list(x.shape)}.",
            hint="make it of this very input: quantize_input(x, spec)",
        )


def quantized_grouped_matmul(
    x_RD: Array,
    w_EDF: Array,
    group_sizes_E: Array,
    spec: QuantizedDotSpec,
    *,
    amaxes: Amaxes | None = None,
    key: Array | None = None,
) -> Array:
    """Return `y_RF`, each row times the matrix of its group, from low-precision copies of both.

    Rows are those of `grouped_matmul`, gradients those of `quantized_dot`. A tensor that has a
    scale is what one group has: its rows, its matrix, its gradients. The products of blocks of rows
    are calls of `quantized_dot`, for which kernels are chosen and pinned as for any other.

    Args:
        x_RD: Rows, sorted by group.
        w_EDF: A matrix for each group, of x's dtype.
        group_sizes_E: Integers >= 0.
        spec: How each operand is quantized.
        amaxes: Float32 magnitudes `[E]` to scale by; those of each group itself where None. Only
            with one scale per tensor.
        key: Random key for stochastic rounding, which rounds to nearest without one.

    Raises:
        KernelError: Shapes, dtypes or choices do not fit, or no kernel can serve a product.
    """
    check_grouped("quantized_grouped_matmul", x_RD, w_EDF, group_sizes_E)
    _check_amaxes(amaxes, spec, w_EDF.shape[0])
    # Kernels are chosen by the block that each will multiply, not by all rows.
    rows = block_size(x_RD.shape[0], w_EDF.shape[0])
    calls = matmul_calls(
        (rows, x_RD.shape[1]),
        w_EDF.shape[1:],
        spec,
        dtype=x_RD.dtype.name,
        weight_gradient_dtype="float32",
    )
    data = None if key is None else jax.random.key_data(key)
    return quantized_custom_vjp(
        x_RD, w_EDF, spec, matmul_kernels(calls), group_sizes=group_sizes_E, amaxes=amaxes, key=data
    )


def amax_of_groups(x_RD: Array, group_sizes_E: Array) -> Array:
    """Return the largest magnitude of each group's rows, float32 `[E]`; 0 where it has none."""
    return layout_of(group_sizes_E, x_RD).amax(x_RD)


def _check_amaxes(amaxes: Amaxes | None, spec: QuantizedDotSpec, num_groups: int) -> None:
    if amaxes is None:
        return
    if "channel" in (spec.inputs.per, spec.weights.per, spec.gradients.per):
        raise KernelError(
            "quantized_grouped_matmul: amaxes are given for operands with a scale per channel.",
            hint="leave them out, or take one scale per tensor",
        )
    for name, amax in amaxes._asdict().items():
        if amax.shape != (num_groups,) or amax.dtype != jnp.float32:
            raise KernelError(
                f"quantized_grouped_matmul: amaxes.{name} is {amax.dtype}{list(amax.shape)}; "
                f"expected float32[{num_groups}], one for each group."
            )
