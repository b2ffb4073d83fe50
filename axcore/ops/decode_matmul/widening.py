"""Weights as they are kept, made matrices of wide numbers.

Letters: K input, N output; G groups of K that share a scale in each column; P panels of C columns.
"""

import jax
import jax.numpy as jnp
from jax import Array

from axcore.ops.decode_matmul.types import INT4_PAIRS


def without_panels(weight: Array, out_dim: int | None) -> Array:
    """Return the matrix `[K, N]` of a weight `[P, K, C]`; any other as it is."""
    if weight.ndim == 2:
        return weight
    return weight.transpose(1, 0, 2).reshape(weight.shape[1], -1)[:, :out_dim]


def narrow_values(weight: Array) -> Array:
    """Return the numbers `[K, N]` of a narrow weight, those of int4 as int8."""
    return unpacked_int4(weight) if weight.dtype == INT4_PAIRS else weight


def wide_weight(values_KN: Array, scale_GN: Array) -> Array:
    """Return what numbers and their scales are, `[K, N]` in float32."""
    grouped = values_KN.astype(jnp.float32).reshape(scale_GN.shape[0], -1, scale_GN.shape[1])
    return (grouped * scale_GN[:, None, :]).reshape(values_KN.shape)


def packed_int4(values_KN: Array) -> Array:
    """Return integers from -8 to 7, two in a byte: `[K / 2, N]` uint8."""
    low, high = jnp.split((values_KN.astype(jnp.int32) & 15).astype(jnp.uint8), 2)
    return low | (high << 4)


def unpacked_int4(packed: Array) -> Array:
    """Return the integers, `[K, N]` int8."""
    both = jnp.concatenate([packed << 4, packed & 0xF0])
    return jax.lax.bitcast_convert_type(both, jnp.int8) >> 4
