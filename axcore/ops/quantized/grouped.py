"""The grouped matrix product with narrow operands: `grouped_matmul` as `quantized_dot` computes it.

Letters: R rows, E groups (experts), D input width, F output width.
"""

import jax
import jax.numpy as jnp
from jax import Array

from axcore.errors import KernelError
from axcore.ops.grouped_matmul.api import check_grouped
from axcore.ops.grouped_matmul.layout import block_size
from axcore.ops.quantized.calls import matmul_calls
from axcore.ops.quantized.dot import matmul_kernels
from axcore.ops.quantized.layouts import layout_of
from axcore.ops.quantized.types import Amaxes, QuantizedDotSpec
from axcore.ops.quantized.vjp import quantized_custom_vjp


def quantized_grouped_matmul(
    x_RD: Array,
    w_EDF: Array,
    group_sizes_E: Array,
    spec: QuantizedDotSpec,
    *,
    amaxes: Amaxes | None = None,
    key: Array | None = None,
) -> Array:
    """Return `y_RF`, each row times the matrix of its group, from narrow copies of both.

    Rows are those of `grouped_matmul`, gradients those of `quantized_dot`. A tensor that has a
    scale is what one group has: its rows, its matrix, its gradients. The products of blocks of rows
    are calls of `quantized_dot`, for which kernels are chosen and pinned as for any other.

    Args:
        x_RD: Rows, sorted by group.
        w_EDF: A matrix for each group, of x's dtype.
        group_sizes_E: Integers >= 0.
        spec: How each operand is made narrow.
        amaxes: Float32 magnitudes `[E]` to scale by; those of each group itself where None. Only
            with one scale per tensor.
        key: Random key for stochastic rounding, which rounds to nearest without one.

    Raises:
        KernelError: Shapes, dtypes or choices do not fit, or no kernel can serve a product.
    """
    check_grouped("quantized_grouped_matmul", x_RD, w_EDF, group_sizes_E)
    _check_amaxes(amaxes, spec, w_EDF.shape[0])
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
