"""The meaning of decode attention: causal attention over the cache, whose end is each row's own."""

from jax import Array

from axcore.ops.attention.reference import attention_reference
from axcore.ops.decode.as_attention import decode_as_attention
from axcore.ops.decode.types import DecodeInputs, DecodeSpec


def decode_attention_reference(inputs: DecodeInputs, spec: DecodeSpec) -> Array:
    """Return `o_BTNV`; copies a paged cache, and holds `[B, N, T, S]` in float32."""
    return attention_reference(*decode_as_attention(inputs, spec))[0]
