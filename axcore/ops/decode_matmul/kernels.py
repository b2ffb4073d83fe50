"""Decode matmul in plain JAX: the reference, and products in parts that hosts share among cores.

Letters: R rows, K input, N output, P parts.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array

from axcore.ops.decode_matmul.op import (
    DecodeMatmulInputs,
    DecodeMatmulSpec,
    full_precision_weight,
    low_precision_values,
    without_panels,
)
from axcore.ops.dispatch import current_policy


def decode_matmul_reference(inputs: DecodeMatmulInputs, spec: DecodeMatmulSpec) -> Array:
    """Return `y_RN`; see `decode_matmul`."""
    x, weight, scale = inputs
    weight = without_panels(weight, spec.out_dim)
    wide = weight.astype(jnp.float32)
    if spec.transposed:
        wide = wide if scale is None else wide * scale
    elif scale is not None:
        scale = without_panels(scale, spec.out_dim)
        wide = full_precision_weight(low_precision_values(weight), scale)
    y = x.astype(jnp.float32) @ (wide.T if spec.transposed else wide)
    return y.astype(x.dtype)


HOST_PARTS = 4
"""Parts of a product with one row on a host; with 8 each is too small to gain anything."""

SMALLEST = 1 << 16
"""Numbers of a matrix below which one core is as fast as several."""


def decode_matmul_portable(inputs: DecodeMatmulInputs, spec: DecodeMatmulSpec) -> Array:
    """Return `y_RN`; see `decode_matmul`."""
    x, weight, scale = inputs
    if spec.transposed:
        y = _compared(x, weight.astype(x.dtype))
        return y if scale is None else (y.astype(jnp.float32) * scale.T).astype(x.dtype)
    weight = without_panels(weight, spec.out_dim)
    if scale is None:
        return _times(x, weight)
    return low_precision_product(x, weight, without_panels(scale, spec.out_dim))


def low_precision_product(x_RK: Array, weight: Array, scale_GN: Array) -> Array:
    """Return `x` times a low-precision weight, which is converted in the product, in x's dtype."""
    values = low_precision_values(weight)
    if len(scale_GN) > 1:
        return x_RK @ full_precision_weight(values, scale_GN).astype(x_RK.dtype)
    # The scale of a full column leaves the sum: multiplied after it, no full-precision weight is
    # ever written.
    y = x_RK @ values.astype(x_RK.dtype)
    return (y.astype(jnp.float32) * scale_GN).astype(x_RK.dtype)


def _times(x: Array, weight_KN: Array) -> Array:
    """Return `x @ weight`; its parts are those of K, which are stored one after the other.

    Compilers for hosts share the product of several rows among cores, and leave that of one to one
    core; in parts it is a product of several.
    """
    parts = _parts_of(x, weight_KN)
    if parts == 1:
        return x @ weight_KN
    by_part = x.reshape(parts, 1, -1) @ weight_KN.reshape(parts, -1, weight_KN.shape[1])
    return jnp.sum(by_part, axis=0)


def _compared(x: Array, rows_NK: Array) -> Array:
    """Return `x @ rows.T`, of which compilers for hosts copy the transpose; its parts are of N."""
    parts = _parts_of(x, rows_NK)
    if parts == 1:
        return jax.lax.dot_general(x, rows_NK, (((1,), (1,)), ((), ())))
    many = jnp.broadcast_to(x, (parts, *x.shape))
    by_part = rows_NK.reshape(parts, -1, rows_NK.shape[1])
    products = jax.lax.dot_general(many, by_part, (((2,), (2,)), ((0,), (0,))))
    return products.reshape(1, -1)


def _parts_of(x: Array, matrix: Array) -> int:
    is_one = x.shape[0] == 1 and x.dtype == matrix.dtype == jnp.float32
    is_worth_it = matrix.size >= SMALLEST and current_policy().hardware.family == "cpu"
    return math.gcd(HOST_PARTS, matrix.shape[0]) if is_one and is_worth_it else 1
