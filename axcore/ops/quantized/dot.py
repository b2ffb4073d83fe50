"""The quantized-dot op: `x @ w` in which each of the three products of training may be narrow.

Letters: R all leading dimensions, K the width that the forward pass sums over, N the width of the
output.
"""

from collections.abc import Mapping

import attrs
import jax
import jax.numpy as jnp
from jax import Array

from axcore.errors import KernelError
from axcore.ops.dispatch.call import Call
from axcore.ops.dispatch.kernel_op import KernelOp
from axcore.ops.dispatch.kernel_result import ResultSpec
from axcore.ops.dispatch.plan import choose_and_record
from axcore.ops.quantized.calls import matmul_calls
from axcore.ops.quantized.sharding import quantized_dot_sharding
from axcore.ops.quantized.types import (
    Amaxes,
    MatmulRole,
    MatmulSpec,
    Operands,
    QuantizedArray,
    QuantizedDotSpec,
)
from axcore.ops.quantized.vjp import Kernels, MatmulKernel, quantized_custom_vjp


def _results(operands: Operands, spec: MatmulSpec) -> ResultSpec:
    sides = zip(operands, spec.contracting, strict=True)
    free = [n for one, over in sides for i, n in enumerate(one.values.shape) if i not in over]
    return ResultSpec("the product", tuple(free), spec.dtype)


QUANTIZED_DOT_OP = KernelOp(name="quantized_dot", sharding=quantized_dot_sharding, results=_results)

WIDE = ("bfloat16", "float16", "float32")
"""Dtypes that can be made narrow."""


def quantized_dot(
    x_RK: Array,
    w_KN: Array,
    spec: QuantizedDotSpec,
    *,
    narrow_x: QuantizedArray | None = None,
    amaxes: Amaxes | None = None,
    key: Array | None = None,
) -> Array:
    """Return `x w`, `[R, N]` in x's dtype, computed from narrow copies of both.

    Its gradients are `dy w^T` and `x^T dy` of narrow copies too: rounding counts as the identity.
    Each product is a call of its own, for which a kernel is chosen: on hardware that lacks the
    format there is none, and `emulated` serves only where it is pinned.

    Args:
        x_RK: Any number of leading dimensions.
        w_KN: Of x's dtype.
        spec: How each operand is made narrow.
        narrow_x: What `narrow_input` made of `x`, for several products of one input; made here
            where None. Only with one scale per tensor.
        amaxes: Magnitudes to scale by; those of the operands themselves where None. Only with one
            scale per tensor.
        key: Random key for stochastic rounding, which rounds to nearest without one.

    Raises:
        KernelError: Shapes, dtypes or choices do not fit, or no kernel can serve a product.
    """
    _check(x_RK, w_KN, spec, amaxes)
    _check_narrow(narrow_x, x_RK, spec)
    if x_RK.ndim == 1:
        row = narrow_x and QuantizedArray(narrow_x.values[None], narrow_x.scale)
        return quantized_dot(x_RK[None], w_KN, spec, narrow_x=row, amaxes=amaxes, key=key)[0]
    calls = matmul_calls(x_RK.shape, w_KN.shape, spec, dtype=x_RK.dtype.name)
    kernels = matmul_kernels(calls)
    data = None if key is None else jax.random.key_data(key)
    return quantized_custom_vjp(
        x_RK, w_KN, spec, kernels, narrow_x=narrow_x, amaxes=amaxes, key=data
    )


def matmul_kernels(calls: Mapping[MatmulRole, Call]) -> Kernels:
    """Return the kernel chosen for each product.

    Raises:
        KernelError: No kernel can serve a product.
    """
    return {name: _matmul_kernel(call) for name, call in calls.items()}


def _matmul_kernel(call: Call) -> MatmulKernel:
    """Return the kernel chosen for a product, on whole arrays.

    One that the op splits over devices gives the gradient of a weight in float32, to be summed.
    """
    record = choose_and_record(call).kernel
    kernel = QUANTIZED_DOT_OP.sharded(record, record.forward.resolve())
    kernel = QUANTIZED_DOT_OP.watched(kernel, record)

    def run(operands: Operands, spec: MatmulSpec) -> Array:
        is_summed = spec.product == "weight_gradient" and record.partitioned_by == "op"
        wide = attrs.evolve(spec, dtype="float32") if is_summed else spec
        product: Array = kernel(operands, wide)
        return product.astype(spec.dtype)

    return run


def _check(x: Array, w: Array, spec: QuantizedDotSpec, amaxes: Amaxes | None) -> None:
    if x.ndim < 1 or w.ndim != 2 or x.shape[-1] != w.shape[0]:
        raise KernelError(
            f"quantized_dot: x has shape {x.shape} and w {w.shape}; expected [..., K] and [K, N]."
        )
    if not (x.dtype == w.dtype and x.dtype.name in WIDE):
        raise KernelError(
            f"quantized_dot: dtypes are x {x.dtype} and w {w.dtype}; expected one of "
            f"{', '.join(WIDE)} for both.",
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
            "quantized_dot: narrow_x is given for an input with a scale per channel.",
            hint="leave it out, or take one scale per tensor",
        )
    values = narrow.values
    if values.shape != x.shape or values.dtype.name != spec.inputs.format:
        raise KernelError(
            f"quantized_dot: narrow_x is {values.dtype}{list(values.shape)}; expected "
            f"{spec.inputs.format}{list(x.shape)}.",
            hint="make it of this very input: narrow_input(x, spec)",
        )
