"""Attention kernels in plain JAX: the reference, and what runs on every platform.

The portable kernel holds small score matrices whole; for large ones see `blockwise.py`.

Letters: B batch, K key heads, G query heads that share a key head, T queries, S keys, V value
width.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import Precision

from axcore.ops.attention.block_math import (
    block_gradients,
    block_logits,
    group_bias,
    group_heads,
    group_rows,
    keys_first,
    row_delta,
    sink_gradient,
    softmax,
    sum_to,
    swap_heads,
    ungroup_heads,
    ungroup_rows,
    weigh_values,
)
from axcore.ops.attention.blockwise import BLOCK_SIZE, blockwise_backward, blockwise_forward
from axcore.ops.attention.mask import columns, dropout_factor, rows, visible
from axcore.ops.attention.op import (
    AttentionInputs,
    AttentionSpec,
    attention_custom_vjp,
    name_attention_residuals,
)


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


class _Residuals(NamedTuple):
    inputs: AttentionInputs
    o_BTNV: Array
    lse_BTN: Array
    probabilities: Array
    capped: Array | None


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def attention_dense(inputs: AttentionInputs, spec: AttentionSpec) -> tuple[Array, Array]:
    """Return `(o_BTNV, lse_BTN)`; see `attention_reference` for the meaning.

    Holds `[B, N, T, S]` in float32 forward, and in the inputs' dtype until backward.
    """
    outputs, _ = _forward(inputs, spec)
    return outputs


def _forward(
    inputs: AttentionInputs, spec: AttentionSpec
) -> tuple[tuple[Array, Array], _Residuals]:
    num_key_heads = inputs.k_BSKH.shape[2]
    q_BKGTH = group_heads(inputs.q_BTNH, num_key_heads)
    bias = None if inputs.bias_BNTS is None else group_bias(inputs.bias_BNTS, num_key_heads)
    mask = visible(spec, rows(inputs, spec), columns(inputs))
    logits = block_logits(q_BKGTH, swap_heads(inputs.k_BSKH), spec, bias=bias, mask=mask)
    sinks = None
    if inputs.sinks_N is not None:
        sinks = inputs.sinks_N.astype(jnp.float32).reshape(1, *q_BKGTH.shape[1:3], 1)
    probabilities, lse_BKGT = softmax(logits.value, sinks)
    dropout = _dropout(inputs, spec)
    kept = probabilities if dropout is None else probabilities * dropout
    o = weigh_values(kept, swap_heads(inputs.v_BSKV)).astype(inputs.q_BTNH.dtype)
    named = name_attention_residuals(ungroup_heads(o), ungroup_rows(lse_BKGT))
    return named, _Residuals(
        # Kept in 16 bits: this array is the largest of the pass, and backward multiplies it in
        # that dtype. The softmax of a small call is not computed again.
        inputs,
        *named,
        probabilities.astype(inputs.v_BSKV.dtype),
        logits.capped,
    )


def _backward(
    spec: AttentionSpec, residuals: _Residuals, gradients: tuple[Array, Array]
) -> tuple[AttentionInputs]:
    inputs, o_BTNV, lse_BTN, probabilities, capped = residuals
    do_BTNV, dlse_BTN = gradients
    num_key_heads = inputs.k_BSKH.shape[2]
    delta_BTN = row_delta(o_BTNV, do_BTNV, dlse_BTN)
    new = block_gradients(
        probabilities,
        group_heads(do_BTNV, num_key_heads),
        group_rows(delta_BTN, num_key_heads),
        spec,
        q_BKGTH=group_heads(inputs.q_BTNH, num_key_heads),
        k_BKSH=swap_heads(inputs.k_BSKH),
        v_BKSV=swap_heads(inputs.v_BSKV),
        capped=capped,
        dropout=_dropout(inputs, spec),
    )
    bias_BNTS = inputs.bias_BNTS
    dbias = None
    if bias_BNTS is not None:
        grouped = sum_to(new.logits, group_bias(bias_BNTS, num_key_heads).shape)
        dbias = grouped.reshape(bias_BNTS.shape).astype(bias_BNTS.dtype)
    return (
        AttentionInputs(
            q_BTNH=ungroup_heads(new.q_BKGTH).astype(inputs.q_BTNH.dtype),
            k_BSKH=keys_first(new.k_BKHS).astype(inputs.k_BSKH.dtype),
            v_BSKV=keys_first(new.v_BKVS).astype(inputs.v_BSKV.dtype),
            bias_BNTS=dbias,
            sinks_N=sink_gradient(inputs.sinks_N, lse_BTN, delta_BTN),
        ),
    )


attention_dense.defvjp(_forward, _backward)


def _dropout(inputs: AttentionInputs, spec: AttentionSpec) -> Array | None:
    """Return the dropout factors `[B, K, G, T, S]`, if there is dropout."""
    if inputs.dropout_seeds_BN is None:
        return None
    num_keys, num_key_heads = inputs.k_BSKH.shape[1:3]
    factor_BNTS = dropout_factor(
        inputs.dropout_seeds_BN,
        spec.dropout_rate,
        num_queries=inputs.q_BTNH.shape[1],
        num_keys=num_keys,
    )
    return group_bias(factor_BNTS, num_key_heads)


def attention_portable(inputs: AttentionInputs, spec: AttentionSpec) -> tuple[Array, Array]:
    """Return `(o_BTNV, lse_BTN)`; see `attention_reference` for the meaning.

    Accepts every call. Where queries and keys fit one block it costs what the plain softmax
    costs; beyond that its memory is linear in their number, and blocks that causality and window
    hide cost nothing.
    """
    # A loop of one step costs more than none: slices, joins, and the softmax computed again.
    if max(inputs.q_BTNH.shape[1], inputs.k_BSKH.shape[1]) <= BLOCK_SIZE:
        outputs: tuple[Array, Array] = attention_dense(inputs, spec)
        return outputs
    return attention_custom_vjp(
        inputs, spec, forward=blockwise_forward, backward=blockwise_backward
    )
