"""The meaning of decode attention: causal attention over the cache, whose end is each row's own."""

import jax.numpy as jnp
from jax import Array

from axcore.ops.attention.reference import attention_reference
from axcore.ops.attention.types import AttentionInputs
from axcore.ops.decode.types import DecodeInputs, DecodeSpec


def decode_attention_reference(inputs: DecodeInputs, spec: DecodeSpec) -> Array:
    """Return `o_BTNV`; copies a paged cache, and holds `[B, N, T, S]` in float32."""
    k_BSKH, v_BSKV = inputs.k, inputs.v
    if inputs.page_table_BP is not None:
        k_BSKH, v_BSKV = (_by_row(pool, inputs.page_table_BP) for pool in (k_BSKH, v_BSKV))
    position_S = jnp.arange(inputs.capacity, dtype=jnp.int32)
    is_written_BS = position_S[None, :] < inputs.lengths_B[:, None]
    causal = AttentionInputs(
        q_BTNH=inputs.q_BTNH,
        k_BSKH=k_BSKH,
        v_BSKV=jnp.where(is_written_BS[..., None, None], v_BSKV, 0),
        query_offset_B=inputs.lengths_B - inputs.q_BTNH.shape[1],
        sinks_N=inputs.sinks_N,
    )
    return attention_reference(causal, spec.as_attention())[0]


def _by_row(pool: Array, page_table_BP: Array) -> Array:
    """Return each row's pages one after the other, `[B, S, ...]`."""
    pages = jnp.take(pool, page_table_BP, axis=0, mode="clip")
    return pages.reshape(pages.shape[0], -1, *pool.shape[2:])
