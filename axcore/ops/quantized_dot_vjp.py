"""The gradients of a quantized product: two narrow products more, each by a kernel of its own.

With a scale per tensor the narrow operands themselves are kept for backward, at a quarter of
float32's memory. With a scale per channel they are made anew, since each product sums over other
axes.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name

from axcore.ops.quantized_dot_quantize import amax_of, quantized
from axcore.ops.quantized_dot_types import (
    Amaxes,
    Contracting,
    Narrow,
    Operands,
    Product,
    ProductSpec,
    Quantization,
    QuantizedDotSpec,
)

QUANTIZED_INPUT = "quantized_input"
QUANTIZED_WEIGHT = "quantized_weight"
"""Names of the narrow operands that are kept for backward, for remat policies."""

ProductKernel: TypeAlias = Callable[[Operands, ProductSpec], Array]
Kernels: TypeAlias = Mapping[Product, ProductKernel]

_Kept: TypeAlias = Narrow | Array
_Residuals: TypeAlias = tuple[_Kept, _Kept, Amaxes | None, Array | None]
_Cotangents: TypeAlias = tuple[Array, Array, Amaxes | None, None]


def dot_from_products(
    x_RK: Array,
    w_KN: Array,
    spec: QuantizedDotSpec,
    kernels: Kernels,
    *,
    amaxes: Amaxes | None = None,
    key: Array | None = None,
) -> Array:
    """Return the product by `kernels`, one for each of the products that `spec` makes narrow.

    Arguments are those of `quantized_dot`, checked; `key` is a key's data.
    """
    rows = tuple(range(x_RK.ndim - 1))
    last = x_RK.ndim - 1

    def product(name: Product, lhs: Narrow, rhs: Narrow, over: Contracting, like: Array) -> Array:
        choices = ProductSpec(product=name, contracting=over, dtype=like.dtype.name)
        return kernels[name](Operands(lhs, rhs), choices)

    @jax.custom_vjp
    def run(x: Array, w: Array, amaxes: Amaxes | None, key: Array | None) -> Array:
        return run_forward(x, w, amaxes, key)[0]

    def run_forward(
        x: Array, w: Array, amaxes: Amaxes | None, key: Array | None
    ) -> tuple[Array, _Residuals]:
        given_x, given_w = (amaxes.inputs, amaxes.weights) if amaxes else (None, None)
        narrow_x = quantized(x, spec.inputs, (last,), amax=given_x)
        narrow_w = quantized(w, spec.weights, (0,), amax=given_w)
        narrow_x, narrow_w = (
            named_narrow(narrow_x, QUANTIZED_INPUT),
            named_narrow(narrow_w, QUANTIZED_WEIGHT),
        )
        y = product("forward", narrow_x, narrow_w, ((last,), (0,)), x)
        kept_x = narrow_x if spec.inputs.per == "tensor" and spec.weight_gradient else x
        kept_w = narrow_w if spec.weights.per == "tensor" else w
        return y, (kept_x, kept_w, amaxes, key)

    def run_backward(residuals: _Residuals, dy: Array) -> _Cotangents:
        kept_x, kept_w, amaxes, key = residuals
        given = amaxes.gradients if amaxes else None
        keys = (None, None) if key is None else two_keys(key)
        narrow_dy = quantized(dy, spec.gradients, (last,), amax=given, key=keys[0])
        narrow_w = _narrow(kept_w, spec.weights, (1,))
        dx = product("input_gradient", narrow_dy, narrow_w, ((last,), (1,)), x_RK)
        if spec.weight_gradient:
            narrow_x = _narrow(kept_x, spec.inputs, rows)
            if spec.gradients.per == "channel":
                narrow_dy = quantized(dy, spec.gradients, rows, key=keys[1])
            dw = product("weight_gradient", narrow_x, narrow_dy, (rows, rows), w_KN)
        else:
            dw = _wide_dot(kept_x, dy, (rows, rows), w_KN)
        return dx, dw, _seen(amaxes, dy), None

    run.defvjp(run_forward, run_backward)
    y: Array = run(x_RK, w_KN, amaxes, key)
    return y


def _narrow(kept: _Kept, how: Quantization, axes: tuple[int, ...]) -> Narrow:
    return kept if isinstance(kept, Narrow) else quantized(kept, how, axes)


def _wide_dot(x: _Kept, dy: Array, over: Contracting, like: Array) -> Array:
    assert not isinstance(x, Narrow)
    total = lax.dot_general(x, dy, (over, ((), ())), preferred_element_type=like.dtype)
    return total.astype(like.dtype)


def _seen(amaxes: Amaxes | None, dy: Array) -> Amaxes | None:
    if amaxes is None:
        return None
    zero = jnp.zeros((), jnp.float32)
    return Amaxes(inputs=zero, weights=zero, gradients=zero, seen=amax_of(dy))


def two_keys(key: Array) -> tuple[Array, Array]:
    """Return the data of two keys from that of one."""
    first, second = jax.random.split(jax.random.wrap_key_data(key))
    return jax.random.key_data(first), jax.random.key_data(second)


def named_narrow(narrow: Narrow, name: str) -> Narrow:
    """Return it under a name, which goes to its bits.

    What remat saves of floats it rounds to their numbers of bits as IEEE 754 would read them, and
    float8_e4m3fn holds more.
    """
    bits = lax.bitcast_convert_type(narrow.values, jnp.uint8)
    named = checkpoint_name(bits, name)  # type: ignore[no-untyped-call]
    return Narrow(lax.bitcast_convert_type(named, narrow.values.dtype), narrow.scale)
