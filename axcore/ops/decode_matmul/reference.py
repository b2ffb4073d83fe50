"""The meaning of a decode matmul: plain `jax.numpy` in float32."""

import jax.numpy as jnp
from jax import Array

from axcore.ops.decode_matmul.types import DecodeMatmulInputs, DecodeMatmulSpec
from axcore.ops.decode_matmul.widening import narrow_values, wide_weight, without_panels


def decode_matmul_reference(inputs: DecodeMatmulInputs, spec: DecodeMatmulSpec) -> Array:
    """Return `y_RN`; see `decode_matmul`."""
    x, weight, scale = inputs
    wide = without_panels(weight, spec.out_dim).astype(jnp.float32)
    if scale is not None:
        wide = wide_weight(narrow_values(weight), scale)
    y = x.astype(jnp.float32) @ (wide.T if spec.transposed else wide)
    return y.astype(x.dtype)
