"""Attention for every platform, in plain JAX: small score matrices whole, large ones in blocks."""

from jax import Array

from axcore.ops.attention.blockwise import BLOCK_SIZE, blockwise_backward, blockwise_forward
from axcore.ops.attention.dense import attention_dense
from axcore.ops.attention.types import AttentionInputs, AttentionSpec
from axcore.ops.attention.vjp import attention_custom_vjp


def attention_portable(inputs: AttentionInputs, spec: AttentionSpec) -> tuple[Array, Array]:
    """Return `(o_BTNV, lse_BTN)`; see `attention_reference` for the meaning.

    Accepts every call. Where queries and keys fit one block it costs what the plain softmax
    costs; beyond that its memory is linear in their number, and blocks that causality and window
    hide cost nothing.
    """
    if max(inputs.q_BTNH.shape[1], inputs.k_BSKH.shape[1]) <= BLOCK_SIZE:
        outputs: tuple[Array, Array] = attention_dense(inputs, spec)
        return outputs
    return attention_custom_vjp(
        inputs, spec, forward=blockwise_forward, backward=blockwise_backward
    )
