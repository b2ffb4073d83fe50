"""The attention op: what layers call. Kernels never show here; see `reference.py` for the meaning
and `portable.py` for what runs where nothing better is installed.

Letters: B batch, T queries, S keys, N query heads, K key heads, H key width, V value width.
"""

import math
from typing import Literal, overload

import jax.numpy as jnp
from jax import Array

from axcore.errors import KernelError
from axcore.ops.attention.checks import check_inputs, check_numbers
from axcore.ops.attention.context_parallel import context_parallel_attention
from axcore.ops.attention.dropout import dropout_seeds
from axcore.ops.attention.types import AttentionInputs, AttentionSpec

Window = tuple[int | None, int | None]


@overload
def attention(
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKV: Array,
    *,
    causal: bool = ...,
    window: Window | None = ...,
    segment_ids: Array | tuple[Array, Array] | None = ...,
    key_ranges: tuple[Array, Array] | None = ...,
    query_offset: int | Array = ...,
    scale: float | None = ...,
    soft_cap: float | None = ...,
    bias_BNTS: Array | None = ...,
    sinks_N: Array | None = ...,
    dropout_rate: float = ...,
    dropout_seed: Array | None = ...,
    return_lse: Literal[False] = ...,
) -> Array: ...


@overload
def attention(
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKV: Array,
    *,
    causal: bool = ...,
    window: Window | None = ...,
    segment_ids: Array | tuple[Array, Array] | None = ...,
    key_ranges: tuple[Array, Array] | None = ...,
    query_offset: int | Array = ...,
    scale: float | None = ...,
    soft_cap: float | None = ...,
    bias_BNTS: Array | None = ...,
    sinks_N: Array | None = ...,
    dropout_rate: float = ...,
    dropout_seed: Array | None = ...,
    return_lse: Literal[True],
) -> tuple[Array, Array]: ...


def attention(
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKV: Array,
    *,
    causal: bool = False,
    window: Window | None = None,
    segment_ids: Array | tuple[Array, Array] | None = None,
    key_ranges: tuple[Array, Array] | None = None,
    query_offset: int | Array = 0,
    scale: float | None = None,
    soft_cap: float | None = None,
    bias_BNTS: Array | None = None,
    sinks_N: Array | None = None,
    dropout_rate: float = 0.0,
    dropout_seed: Array | None = None,
    return_lse: bool = False,
) -> Array | tuple[Array, Array]:
    """Return `o_BTNV = softmax(logits) v`, in q's dtype; accumulates in float32.

    `logits = cap(scale * q k) + bias` where the key is visible and -inf elsewhere. Query `t` is
    at place `p = query_offset + t` of the key axis. A key must pass every condition given. A query
    that sees no key gives zeros, with zero gradients; one with a logit of +inf gives NaN, and no
    other query does. Query head `n` reads key head `n // (N // K)`.

    Args:
        q_BTNH: Queries.
        k_BSKH: Keys, of q's dtype; `N` is a multiple of `K`.
        v_BSKV: Values, of q's dtype; `V` may differ from `H`.
        causal: Keys at or before `p`.
        window: `(left, right)`: keys in `[p - left, p + right]`; `None` is unbounded.
        segment_ids: Integers `[B, T]` when `T == S`, or a pair `[B, T]`, `[B, S]`: keys of the
            query's own segment. Segment 0 is padding, which sees nothing and is not seen.
        key_ranges: Integers `(start, end)`, each `[B, T]`: keys in `[start, end)` of each query.
        query_offset: Static, or an integer array of shape `[]` or `[B]`. Static offsets let
            kernels skip what causality and window hide.
        scale: Factor on the products; `1 / sqrt(H)` by default.
        soft_cap: `cap(x) = soft_cap * tanh(x / soft_cap)`.
        bias_BNTS: Added to the logits; any dimension may be 1. -inf hides.
        sinks_N: One more logit per head that takes probability and gives no value.
        dropout_rate: Chance to drop each probability; the kept are scaled by `1 / (1 - rate)`.
        dropout_seed: Unsigned scalar, needed with `dropout_rate`. Equal seeds drop equal entries
            in every kernel.
        return_lse: Return `(o_BTNV, lse_BTN)` with the float32 log-sum-exp of each row's logits
            and sink; -inf for a row that sees nothing.

    Raises:
        KernelError: Shapes, dtypes or numbers do not fit, or no kernel can serve the call.
    """
    resolved_scale = 1.0 / math.sqrt(q_BTNH.shape[-1]) if scale is None else float(scale)
    check_numbers(window=window, scale=resolved_scale, soft_cap=soft_cap, dropout_rate=dropout_rate)
    left, right = window or (None, None)
    spec = AttentionSpec(
        scale=resolved_scale,
        left=left,
        right=0 if causal else right,
        query_offset=query_offset if isinstance(query_offset, int) else 0,
        soft_cap=soft_cap,
        dropout_rate=float(dropout_rate),
    )
    q_segments, k_segments = _segments(segment_ids)
    k_start, k_end = key_ranges or (None, None)
    inputs = AttentionInputs(
        q_BTNH=q_BTNH,
        k_BSKH=k_BSKH,
        v_BSKV=v_BSKV,
        q_segments_BT=q_segments,
        k_segments_BS=k_segments,
        k_start_BT=k_start,
        k_end_BT=k_end,
        query_offset_B=_offset(query_offset, q_BTNH.shape[0]),
        bias_BNTS=bias_BNTS,
        sinks_N=sinks_N,
    )
    check_inputs(inputs)
    if dropout_rate:
        inputs = inputs._replace(dropout_seeds_BN=_seeds(q_BTNH, dropout_rate, dropout_seed))
    o_BTNV, lse_BTN = context_parallel_attention(inputs, spec, with_lse=return_lse)
    return (o_BTNV, lse_BTN) if return_lse else o_BTNV


def _segments(
    segment_ids: Array | tuple[Array, Array] | None,
) -> tuple[Array | None, Array | None]:
    if segment_ids is None:
        return None, None
    if isinstance(segment_ids, tuple):
        return segment_ids
    return segment_ids, segment_ids


def _offset(query_offset: int | Array, batch: int) -> Array | None:
    if isinstance(query_offset, int):
        return None
    if query_offset.ndim == 0:
        return jnp.broadcast_to(query_offset, (batch,))
    return query_offset


def _seeds(q_BTNH: Array, dropout_rate: float, dropout_seed: Array | None) -> Array:
    if dropout_seed is None:
        raise KernelError(
            f"attention: dropout_rate is {dropout_rate} and there is no dropout_seed.",
            hint="pass dropout_seed=jax.random.bits(key)",
        )
    return dropout_seeds(dropout_seed, q_BTNH.shape[0], q_BTNH.shape[2])
