"""Attention block by block with an online softmax: memory grows with T and S, not with T * S.

One loop runs over the list of live (query block, key block) pairs; its length is static, and pairs
that causality and window hide are not in it; those that documents and key ranges hide are passed
over when it runs. Backward computes the probabilities of each block again from the log-sum-exp,
which with the output is all that forward leaves behind.

Source: Milakov and Gimelshein 2018, arXiv:1805.02867; Rabe and Staats 2021, arXiv:2112.05682; Dao
et al. 2022, arXiv:2205.14135.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from axcore.ops.attention.block_math import (
    block_gradients,
    finite_lse,
    row_delta,
    sink_gradient,
)
from axcore.ops.attention.block_pairs import active_block_pairs
from axcore.ops.attention.block_sparsity import active_at_run_time, where_active
from axcore.ops.attention.blocking import BlockedCall
from axcore.ops.attention.heads import (
    group_heads,
    group_rows,
    keys_first,
    ungroup_heads,
    ungroup_rows,
)
from axcore.ops.attention.online_softmax import OnlineSoftmax
from axcore.ops.attention.types import AttentionInputs, AttentionSpec

BLOCK_SIZE = 512

_Pair = tuple[tuple[Array, Array], Array | None]
"""Numbers of a query and a key block, and whether they have anything to compute; or many such."""


def blockwise_forward(
    inputs: AttentionInputs, spec: AttentionSpec, *, block_size: int = BLOCK_SIZE
) -> tuple[Array, Array]:
    """Return `(o_BTNV, lse_BTN)`; see `attention_reference` for the meaning."""
    call = BlockedCall.of(inputs, spec, block_size)

    def step(running: OnlineSoftmax, pair: _Pair) -> tuple[OnlineSoftmax, None]:
        (i, j), is_active = pair
        old = jax.tree.map(lambda x: x[i], running)
        new = where_active(
            is_active,
            lambda: old.add(call.logits(i, j).value, call.v[j], call.dropout(i, j)),
            lambda: old,
        )
        return jax.tree.map(lambda x, y: x.at[i].set(y), running, new), None

    start = OnlineSoftmax.start(call.q.shape[:-1], call.v.shape[-1], inputs.sinks_N)
    running, _ = lax.scan(step, start, _pairs(call))
    o, lse = running.finish()
    o = o.astype(inputs.q_BTNH.dtype)
    return ungroup_heads(call.queries.join(o, axis=3)), ungroup_rows(call.queries.join(lse, axis=3))


def _pairs(call: BlockedCall) -> _Pair:
    """Return the pairs of blocks to go through, and which of them have anything to compute."""
    is_static = not call.has_offsets
    pairs = jnp.asarray(
        active_block_pairs(call.queries, call.keys, call.spec, offset_is_static=is_static)
    )
    return (pairs[:, 0], pairs[:, 1]), active_at_run_time(call, pairs)


class _Sums(NamedTuple):
    """Gradients so far, cut into blocks, float32; or what one pair of blocks adds to them."""

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
    call = BlockedCall.of(inputs, spec, block_size)
    num_key_heads = inputs.k_BSKH.shape[2]
    delta_BTN = row_delta(o_BTNV, do_BTNV, dlse_BTN)
    do = call.queries.cut(group_heads(do_BTNV, num_key_heads), axis=3)
    delta = call.queries.cut(group_rows(delta_BTN, num_key_heads), axis=3)
    lse = call.queries.cut(group_rows(finite_lse(lse_BTN), num_key_heads), axis=3)

    def gradients(i: Array, j: Array) -> _Sums:
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
        bias = None if call.bias is None else call.bias.summed(new.logits)
        return _Sums(q=new.q_BKGTH, k=new.k_BKHS, v=new.v_BKVS, bias=bias)

    def step(sums: _Sums, pair: _Pair) -> tuple[_Sums, None]:
        (i, j), is_active = pair
        compute = partial(gradients, i, j)
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(compute))
        new = where_active(is_active, compute, lambda: nothing)
        bias = sums.bias
        if call.bias is not None and bias is not None and new.bias is not None:
            bias = call.bias.add(bias, new.bias, i, j)
        added = _Sums(
            q=sums.q.at[i].add(new.q),
            k=sums.k.at[j].add(new.k),
            v=sums.v.at[j].add(new.v),
            bias=bias,
        )
        return added, None

    keys = (jnp.swapaxes(x, -1, -2) for x in (call.k, call.v))
    q, k, v = (jnp.zeros(x.shape, jnp.float32) for x in (call.q, *keys))
    start = _Sums(q, k, v, None if call.bias is None else call.bias.zeros())
    sums, _ = lax.scan(step, start, _pairs(call))
    return AttentionInputs(
        q_BTNH=ungroup_heads(call.queries.join(sums.q, axis=3)).astype(inputs.q_BTNH.dtype),
        k_BSKH=keys_first(call.keys.join(sums.k, axis=3)).astype(inputs.k_BSKH.dtype),
        v_BSKV=keys_first(call.keys.join(sums.v, axis=3)).astype(inputs.v_BSKV.dtype),
        bias_BNTS=_join_bias(call, sums.bias, inputs.bias_BNTS),
        sinks_N=sink_gradient(inputs.sinks_N, lse_BTN, delta_BTN),
    )


def _join_bias(call: BlockedCall, sums: Array | None, bias_BNTS: Array | None) -> Array | None:
    if call.bias is None or sums is None or bias_BNTS is None:
        return None
    return call.bias.join(sums, bias_BNTS.shape).astype(bias_BNTS.dtype)
