"""Attention for every platform, in plain JAX."""

from jax import Array

from axcore.ops.attention_reference import attention_reference
from axcore.ops.attention_types import AttentionInputs, AttentionSpec


def attention_portable(inputs: AttentionInputs, spec: AttentionSpec) -> tuple[Array, Array]:
    """Return `(o_BTNV, lse_BTN)`."""
    return attention_reference(inputs, spec)
