"""The meaning of attention: plain `jax.numpy`, float32 throughout, the whole score matrix held."""

import jax.numpy as jnp
from jax import Array
from jax.lax import Precision

from axcore.ops.attention.block_math import softmax
from axcore.ops.attention.dropout import dropout_factor
from axcore.ops.attention.heads import (
    group_bias,
    group_heads,
    swap_heads,
    ungroup_heads,
    ungroup_rows,
)
from axcore.ops.attention.mask import columns, rows, visible
from axcore.ops.attention.types import AttentionInputs, AttentionSpec


def attention_reference(inputs: AttentionInputs, spec: AttentionSpec) -> tuple[Array, Array]:
    """Return `(o_BTNV, lse_BTN)`: softmax attention and the float32 log-sum-exp of its logits.

    A row that sees no key has `o == 0`, `lse == -inf` (or its sink), and zero gradients.
    """
    num_keys, num_key_heads = inputs.k_BSKH.shape[1:3]
    q_BKGTH = group_heads(inputs.q_BTNH.astype(jnp.float32), num_key_heads)
    k_BKSH = swap_heads(inputs.k_BSKH.astype(jnp.float32))
    v_BKSV = swap_heads(inputs.v_BSKV.astype(jnp.float32))

    logits = spec.scale * _matmul("bkgth,bksh->bkgts", q_BKGTH, k_BKSH)
    if spec.soft_cap is not None:
        logits = spec.soft_cap * jnp.tanh(logits / spec.soft_cap)
    if inputs.bias_BNTS is not None:
        logits = logits + group_bias(inputs.bias_BNTS.astype(jnp.float32), num_key_heads)
    mask = visible(spec, rows(inputs, spec), columns(inputs))
    if mask is not None:
        logits = jnp.where(mask, logits, -jnp.inf)

    sinks = None
    if inputs.sinks_N is not None:
        sinks = inputs.sinks_N.astype(jnp.float32).reshape(1, *q_BKGTH.shape[1:3], 1)
    probabilities, lse_BKGT = softmax(logits, sinks)
    if inputs.dropout_seeds_BN is not None:
        factor_BNTS = dropout_factor(
            inputs.dropout_seeds_BN,
            spec.dropout_rate,
            num_queries=inputs.q_BTNH.shape[1],
            num_keys=num_keys,
        )
        probabilities = probabilities * group_bias(factor_BNTS, num_key_heads)
    o_BTNV = ungroup_heads(_matmul("bkgts,bksv->bkgtv", probabilities, v_BKSV))
    return o_BTNV.astype(inputs.q_BTNH.dtype), ungroup_rows(lse_BKGT)


def _matmul(equation: str, a: Array, b: Array) -> Array:
    return jnp.einsum(equation, a, b, precision=Precision.HIGHEST)
