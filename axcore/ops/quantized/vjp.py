"""The gradients of a quantized product: two narrow products more, each by a kernel of its own.

With a scale per tensor the narrow operands themselves are kept for backward, at a quarter of
float32's memory. With a scale per channel they are made again, since each product sums over other
axes.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name

from axcore.ops.quantized.layouts import Matmul, Operand, contracting, layout_of
from axcore.ops.quantized.types import (
    Amaxes,
    MatmulRole,
    MatmulSpec,
    Operands,
    QuantizedArray,
    QuantizedDotSpec,
)

QUANTIZED_INPUT = "quantized_input"
QUANTIZED_WEIGHT = "quantized_weight"
"""Names of the narrow operands that are kept for backward, for remat policies."""

MatmulKernel: TypeAlias = Callable[[Operands, MatmulSpec], Array]
Kernels: TypeAlias = Mapping[MatmulRole, MatmulKernel]

_Residuals: TypeAlias = tuple[Operand, Operand, Array | None, Amaxes | None, Array | None]
_Cotangents: TypeAlias = tuple[Array, None, Array, None, Amaxes | None, None]


def narrow_input(
    x: Array,
    spec: QuantizedDotSpec,
    *,
    group_sizes: Array | None = None,
    amax: Array | None = None,
) -> QuantizedArray:
    """Return `x` as the forward pass multiplies it; no gradient goes through it."""
    rows = lax.stop_gradient(x)
    narrow = layout_of(group_sizes, x).rows(rows, spec.inputs, "forward", amax)
    return _named(narrow, QUANTIZED_INPUT)


def quantized_custom_vjp(
    x: Array,
    w: Array,
    spec: QuantizedDotSpec,
    kernels: Kernels,
    *,
    narrow_x: QuantizedArray | None = None,
    group_sizes: Array | None = None,
    amaxes: Amaxes | None = None,
    key: Array | None = None,
) -> Array:
    """Return the product by `kernels`, one for each of the products that `spec` makes narrow.

    Arguments are those of `quantized_dot` or, with `group_sizes`, of `quantized_grouped_matmul`,
    checked; `key` is a key's data. `x` is made narrow outside of what is differentiated, so that
    products which are given the same `narrow_x` also keep it once for backward.
    """
    x_dtype, like_w = x.dtype.name, w
    if narrow_x is None:
        given_x = amaxes.inputs if amaxes else None
        narrow_x = narrow_input(x, spec, group_sizes=group_sizes, amax=given_x)

    @jax.custom_vjp
    def run(
        x: Array,
        quantized_x: QuantizedArray,
        w: Array,
        sizes: Array | None,
        amaxes: Amaxes | None,
        key: Array | None,
    ) -> Array:
        return run_forward(x, quantized_x, w, sizes, amaxes, key)[0]

    def run_forward(
        x: Array,
        quantized_x: QuantizedArray,
        w: Array,
        sizes: Array | None,
        amaxes: Amaxes | None,
        key: Array | None,
    ) -> tuple[Array, _Residuals]:
        layout = layout_of(sizes, x)
        given_w = amaxes.weights if amaxes else None
        quantized_w = _named(layout.weights(w, spec.weights, "forward", given_w), QUANTIZED_WEIGHT)
        y = layout.times(_narrow(kernels, "forward"), quantized_x, quantized_w, x_dtype)
        kept_x = quantized_x if spec.inputs.per == "tensor" and spec.weight_gradient else x
        kept_w = quantized_w if spec.weights.per == "tensor" else w
        return y, (kept_x, kept_w, sizes, amaxes, key)

    def run_backward(residuals: _Residuals, dy: Array) -> _Cotangents:
        x, w, sizes, amaxes, key = residuals
        layout = layout_of(sizes, dy)
        given = amaxes.gradients if amaxes else None
        key_dx, key_dw = (None, None) if key is None else _two_keys(key)
        quantized_dy = layout.rows(dy, spec.gradients, "input_gradient", given, key_dx)
        if not isinstance(w, QuantizedArray):
            w = layout.weights(w, spec.weights, "input_gradient")
        dx = layout.times(_narrow(kernels, "input_gradient"), quantized_dy, w, x_dtype)
        if spec.weight_gradient:
            if not isinstance(x, QuantizedArray):
                x = layout.rows(x, spec.inputs, "weight_gradient")
            if spec.gradients.per == "channel":
                quantized_dy = layout.rows(dy, spec.gradients, "weight_gradient", key=key_dw)
            narrow = _narrow(kernels, "weight_gradient")
            dw = layout.weight_gradient(narrow, x, quantized_dy, like_w)
        else:
            assert not isinstance(x, QuantizedArray)
            wide_x, wide_dy = layout.spread(x), layout.spread(dy)
            dw = layout.weight_gradient(_wide_weight_gradient, wide_x, wide_dy, like_w)
        seen = None if amaxes is None else _seen(amaxes, layout.amax(dy))
        return dx, None, dw, None, seen, None

    run.defvjp(run_forward, run_backward)
    y: Array = run(x, narrow_x, w, group_sizes, amaxes, key)
    return y


def _narrow(kernels: Kernels, role: MatmulRole) -> Matmul:
    """Return the matmul of rows and one matrix by the kernel for one of the products."""

    def matmul(lhs: Operand, rhs: Operand, dtype: str) -> Array:
        assert isinstance(lhs, QuantizedArray)
        assert isinstance(rhs, QuantizedArray)
        over = contracting(role, lhs.values.ndim)
        spec = MatmulSpec(product=role, contracting=over, dtype=dtype)
        return kernels[role](Operands(lhs, rhs), spec)

    return matmul


def _wide_weight_gradient(x: Operand, dy: Operand, dtype: str) -> Array:
    assert not isinstance(x, QuantizedArray)
    assert not isinstance(dy, QuantizedArray)
    dims = (contracting("weight_gradient", x.ndim), ((), ()))
    total = lax.dot_general(x, dy, dims, preferred_element_type=jnp.dtype(dtype))
    return total.astype(dtype)


def _seen(amaxes: Amaxes, seen: Array) -> Amaxes:
    zeros = jnp.zeros_like(amaxes.inputs)
    return Amaxes(inputs=zeros, weights=zeros, gradients=zeros, seen=seen)


def _two_keys(key: Array) -> tuple[Array, Array]:
    """Return the data of two keys from that of one."""
    first, second = jax.random.split(jax.random.wrap_key_data(key))
    return jax.random.key_data(first), jax.random.key_data(second)


def _named(narrow: QuantizedArray, name: str) -> QuantizedArray:
    """Return it under a name, which goes to its bits.

    What remat saves of floats it rounds to their numbers of bits as IEEE 754 would read them, and
    float8_e4m3fn holds more.
    """
    bits = lax.bitcast_convert_type(narrow.values, jnp.uint8)
    named = checkpoint_name(bits, name)  # type: ignore[no-untyped-call]
    return QuantizedArray(lax.bitcast_convert_type(named, narrow.values.dtype), narrow.scale)
