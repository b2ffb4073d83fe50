"""The meaning of attention: plain `jax.numpy`, float32 throughout, the whole score matrix held."""

import jax.numpy as jnp
from jax import Array
from jax.lax import Precision

from axcore.ops.attention_dropout import dropout_factor
from axcore.ops.attention_heads import group_heads, ungroup_heads
from axcore.ops.attention_mask import columns, rows, visible
from axcore.ops.attention_types import AttentionInputs, AttentionSpec


def attention_reference(inputs: AttentionInputs, spec: AttentionSpec) -> tuple[Array, Array]:
    """Return `(o_BTNV, lse_BTN)`: softmax attention and the float32 log-sum-exp of its logits.

    A row that sees no key has `o == 0`, `lse == -inf` (or its sink), and zero gradients.
    """
    num_queries, num_heads = inputs.q_BTNH.shape[1:3]
    num_key_heads = inputs.k_BSKH.shape[2]
    q_BTKGH = group_heads(inputs.q_BTNH.astype(jnp.float32), num_key_heads)
    k_BSKH = inputs.k_BSKH.astype(jnp.float32)
    v_BSKV = inputs.v_BSKV.astype(jnp.float32)

    logits_BKGTS = spec.scale * jnp.einsum(
        "btkgh,bskh->bkgts", q_BTKGH, k_BSKH, precision=Precision.HIGHEST
    )
    if spec.soft_cap is not None:
        logits_BKGTS = spec.soft_cap * jnp.tanh(logits_BKGTS / spec.soft_cap)
    if inputs.bias_BNTS is not None:
        logits_BKGTS += _group_bias(inputs.bias_BNTS, num_key_heads, num_heads)
    mask = visible(spec, rows(inputs, spec), columns(inputs))
    if mask is not None:
        logits_BKGTS = jnp.where(mask, logits_BKGTS, -jnp.inf)

    sinks = None
    if inputs.sinks_N is not None:
        sinks = inputs.sinks_N.astype(jnp.float32).reshape(1, num_key_heads, -1, 1)
    probabilities, lse_BKGT = _softmax(logits_BKGTS, sinks)
    if spec.dropout_rate > 0.0:
        assert inputs.dropout_seed is not None
        factor_BNTS = dropout_factor(
            inputs.dropout_seed,
            spec.dropout_rate,
            shape=(inputs.q_BTNH.shape[0], num_heads, num_queries, k_BSKH.shape[1]),
        )
        probabilities *= factor_BNTS.reshape(probabilities.shape)
    o_BTKGV = jnp.einsum("bkgts,bskv->btkgv", probabilities, v_BSKV, precision=Precision.HIGHEST)
    lse_BTN = lse_BKGT.transpose(0, 3, 1, 2).reshape(inputs.q_BTNH.shape[:3])
    return ungroup_heads(o_BTKGV).astype(inputs.q_BTNH.dtype), lse_BTN


def _group_bias(bias_BNTS: Array, num_key_heads: int, num_heads: int) -> Array:
    """Return the bias as float32 `[B, K, G, T, S]`, where sizes of 1 stay 1."""
    batch, heads, queries, keys = bias_BNTS.shape
    bias_BNTS = bias_BNTS.astype(jnp.float32)
    if heads == 1:
        return bias_BNTS.reshape(batch, 1, 1, queries, keys)
    return bias_BNTS.reshape(batch, num_key_heads, num_heads // num_key_heads, queries, keys)


def _softmax(logits_BKGTS: Array, sinks: Array | None) -> tuple[Array, Array]:
    """Return probabilities and log-sum-exp over the last axis; an empty row gets 0 and -inf."""
    maximum = jnp.max(logits_BKGTS, axis=-1, initial=-jnp.inf)
    if sinks is not None:
        maximum = jnp.maximum(maximum, sinks)
    empty = jnp.isneginf(maximum)
    shift = jnp.where(empty, 0.0, maximum)
    exponentials = jnp.exp(logits_BKGTS - shift[..., None])
    total = jnp.sum(exponentials, axis=-1)
    if sinks is not None:
        total += jnp.exp(sinks - shift)
    safe_total = jnp.where(empty, 1.0, total)
    lse = jnp.where(empty, -jnp.inf, shift + jnp.log(safe_total))
    return exponentials / safe_total[..., None], lse
