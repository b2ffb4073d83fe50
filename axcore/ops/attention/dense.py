# ruff: noqa: N815 - fields carry shape letters
"""Attention on a whole, small score matrix: no loop, and backward computes nothing twice.

Letters: B batch, K key heads, G query heads that share a key head, T queries, S keys, V value
width.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from axcore.ops.attention.block_math import (
    block_gradients,
    block_logits,
    row_delta,
    sink_gradient,
    softmax,
    sum_to,
    weigh_values,
)
from axcore.ops.attention.dropout import dropout_factor
from axcore.ops.attention.heads import (
    group_bias,
    group_heads,
    group_rows,
    keys_first,
    swap_heads,
    ungroup_heads,
    ungroup_rows,
)
from axcore.ops.attention.mask import columns, rows, visible
from axcore.ops.attention.types import AttentionInputs, AttentionSpec
from axcore.ops.residuals import name_attention_residuals


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
        inputs, *named, probabilities.astype(inputs.v_BSKV.dtype), logits.capped
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
