"""Attention block by block with an online softmax: memory grows with T and S, not with T * S.

One loop runs over the list of live (query block, key block) pairs; its length is static, and pairs
that causality and window hide are not in it. Backward computes the probabilities of each block anew
from the log-sum-exp, which with the output is all that forward leaves behind.

Source: Milakov and Gimelshein 2018, arXiv:1805.02867; Rabe and Staats 2021, arXiv:2112.05682; Dao
et al. 2022, arXiv:2205.14135.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from axcore.ops.attention_block_math import (
    block_gradients,
    finite_lse,
    row_delta,
    sink_gradient,
)
from axcore.ops.attention_blocks import live_pairs
from axcore.ops.attention_cut import CutCall
from axcore.ops.attention_heads import (
    group_heads,
    group_rows,
    swap_heads,
    ungroup_heads,
    ungroup_rows,
)
from axcore.ops.attention_online import OnlineSoftmax
from axcore.ops.attention_types import AttentionInputs, AttentionSpec
from axcore.ops.attention_vjp import ForwardOnly

BLOCK_SIZE = 512


def blockwise_forward(
    inputs: AttentionInputs, spec: AttentionSpec, *, block_size: int = BLOCK_SIZE
) -> tuple[Array, Array]:
    """Return `(o_BTNV, lse_BTN)`; see `attention_reference` for the meaning."""
    call = CutCall.of(inputs, spec, block_size)

    def step(running: OnlineSoftmax, pair: Array) -> tuple[OnlineSoftmax, None]:
        i, j = pair[0], pair[1]
        old = jax.tree.map(lambda x: x[i], running)
        new = old.add(call.logits(i, j).value, call.v[j], call.dropout(i, j))
        return jax.tree.map(lambda x, y: x.at[i].set(y), running, new), None

    start = OnlineSoftmax.start(call.q.shape[:-1], call.v.shape[-1], inputs.sinks_N)
    running, _ = lax.scan(step, start, _pairs(call, inputs))
    o, lse = running.finish()
    o = o.astype(inputs.q_BTNH.dtype)
    return ungroup_heads(call.queries.join(o, axis=3)), ungroup_rows(call.queries.join(lse, axis=3))


def _pairs(call: CutCall, inputs: AttentionInputs) -> Array:
    is_static = inputs.query_offset_B is None
    return jnp.asarray(live_pairs(call.queries, call.keys, call.spec, offset_is_static=is_static))


class _Sums(NamedTuple):
    """Gradients so far, cut into blocks, float32."""

    q: Array
    k: Array
    v: Array
    bias: Array | None


def blockwise_backward(
    inputs: AttentionInputs,
    spec: AttentionSpec,
    *,
    o_BTNV: Array,
    lse_BTN: Array,
    do_BTNV: Array,
    dlse_BTN: Array,
    block_size: int = BLOCK_SIZE,
) -> AttentionInputs:
    """Return the gradients of a call's arrays from its output and log-sum-exp.

    Parts that carry no gradient (integers) are None.
    """
    call = CutCall.of(inputs, spec, block_size)
    num_key_heads = inputs.k_BSKH.shape[2]
    delta_BTN = row_delta(o_BTNV, do_BTNV, dlse_BTN)
    do = call.queries.cut(group_heads(do_BTNV, num_key_heads), axis=3)
    delta = call.queries.cut(group_rows(delta_BTN, num_key_heads), axis=3)
    lse = call.queries.cut(group_rows(finite_lse(lse_BTN), num_key_heads), axis=3)

    def step(sums: _Sums, pair: Array) -> tuple[_Sums, None]:
        i, j = pair[0], pair[1]
        logits = call.logits(i, j)
        new = block_gradients(
            jnp.exp(logits.value - lse[i][..., None]),
            do[i],
            delta[i],
            spec,
            q_BKGTH=call.q[i],
            k_BKSH=call.k[j],
            v_BKSV=call.v[j],
            capped=logits.capped,
            dropout=call.dropout(i, j),
        )
        bias = sums.bias
        if call.bias is not None and bias is not None:
            bias = call.bias.add(bias, new.logits, i, j)
        added = _Sums(
            q=sums.q.at[i].add(new.q_BKGTH),
            k=sums.k.at[j].add(new.k_BKSH),
            v=sums.v.at[j].add(new.v_BKSV),
            bias=bias,
        )
        return added, None

    q, k, v = (jnp.zeros(x.shape, jnp.float32) for x in (call.q, call.k, call.v))
    start = _Sums(q, k, v, None if call.bias is None else call.bias.zeros())
    sums, _ = lax.scan(step, start, _pairs(call, inputs))
    return AttentionInputs(
        q_BTNH=ungroup_heads(call.queries.join(sums.q, axis=3)).astype(inputs.q_BTNH.dtype),
        k_BSKH=swap_heads(call.keys.join(sums.k, axis=2)).astype(inputs.k_BSKH.dtype),
        v_BSKV=swap_heads(call.keys.join(sums.v, axis=2)).astype(inputs.v_BSKV.dtype),
        bias_BNTS=_join_bias(call, sums.bias, inputs.bias_BNTS),
        sinks_N=sink_gradient(inputs.sinks_N, lse_BTN, delta_BTN),
    )


def _join_bias(call: CutCall, sums: Array | None, bias_BNTS: Array | None) -> Array | None:
    if call.bias is None or sums is None or bias_BNTS is None:
        return None
    return call.bias.join(sums, bias_BNTS.shape).astype(bias_BNTS.dtype)


attention_blockwise = ForwardOnly(blockwise_forward)
