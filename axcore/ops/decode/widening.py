"""Keys and values that a cache keeps in fewer bits, in the dtype of the queries again."""

import jax.numpy as jnp
from jax import Array

from axcore.ops.decode.types import DecodeInputs

NARROW = ("int8", "float8_e4m3fn", "float8_e5m2")
"""Dtypes of keys and values that come with scales."""


def widened(inputs: DecodeInputs) -> DecodeInputs:
    """Return the same call on keys and values of q's dtype, without scales."""
    dtype = inputs.q_BTNH.dtype
    if inputs.key_scale_MCK is None or inputs.value_scale_MCK is None:
        return inputs._replace(k=inputs.k.astype(dtype), v=inputs.v.astype(dtype))
    return inputs._replace(
        k=_wide(inputs.k, inputs.key_scale_MCK).astype(dtype),
        v=_wide(inputs.v, inputs.value_scale_MCK).astype(dtype),
        key_scale_MCK=None,
        value_scale_MCK=None,
    )


def _wide(x: Array, scale: Array) -> Array:
    return x.astype(jnp.float32) * scale[..., None]
