"""Decode attention as plain attention over each row's keys, put together from the cache.

For calls with many queries a row, as when a prompt is read: the copy of the cache is small beside
the products then, and every kernel of attention may serve.

Letters: B batch rows, S keys that a row has room for.
"""

from typing import Any, cast

import attrs
import jax
import jax.numpy as jnp
from jax import Array

from axcore.ops.attention.kernels import attention_call
from axcore.ops.attention.types import AttentionInputs, AttentionSpec
from axcore.ops.decode.types import DecodeInputs, DecodeSpec
from axcore.ops.decode.widening import widened
from axcore.ops.dispatch.call import Call


def decode_as_attention(
    inputs: DecodeInputs, spec: DecodeSpec
) -> tuple[AttentionInputs, AttentionSpec]:
    """Return the attention call that gives the same; copies a paged cache, and all values.

    Values beyond a row's length are 0: no NaN there is masked by a weight of 0. Keys are as they
    are, and hidden.
    """
    by_row = widened(inputs._replace(**_kept_by_row(inputs)))
    k_BSKH, v_BSKV = by_row.k, by_row.v
    position_S = jnp.arange(inputs.capacity, dtype=jnp.int32)
    is_written_BS = position_S[None, :] < inputs.lengths_B[:, None]
    causal = AttentionInputs(
        q_BTNH=inputs.q_BTNH,
        k_BSKH=k_BSKH,
        v_BSKV=jnp.where(is_written_BS[..., None, None], v_BSKV, 0),
        query_offset_B=inputs.lengths_B - inputs.q_BTNH.shape[1],
        sinks_N=inputs.sinks_N,
    )
    return causal, spec.as_attention()


def attention_call_of(call: Call) -> Call:
    """Return the abstract call of attention that `decode_as_attention` makes of a decode call."""
    arrays = {
        field: jax.ShapeDtypeStruct(call.shape(name), jnp.dtype(call.dtype(name)))  # type: ignore[no-untyped-call]
        if call.has(name)
        else None
        for field, name in _NAMES.items()
    }
    choices = {field.name: call.feature(field.name) for field in attrs.fields(DecodeSpec)}
    spec = DecodeSpec(**cast(Any, choices))
    inputs = DecodeInputs(**cast(Any, arrays))
    made: list[Call] = []

    def make(given: DecodeInputs) -> None:
        made.append(attention_call(*decode_as_attention(given, spec), with_lse=False))

    jax.eval_shape(make, inputs)
    return made[0]


_NAMES = {
    field: field if field in ("k", "v") else field.rpartition("_")[0]
    for field in DecodeInputs._fields
}


def _kept_by_row(inputs: DecodeInputs) -> dict[str, Any]:
    """Return what the cache keeps of each row, by the name of the field."""
    names = ("k", "v", "key_scale_MCK", "value_scale_MCK")
    kept = {name: getattr(inputs, name) for name in names}
    table_BP = inputs.page_table_BP
    if table_BP is None:
        return kept
    return {name: jax.tree.map(lambda x: _by_row(x, table_BP), pool) for name, pool in kept.items()}


def _by_row(pool: Array, page_table_BP: Array) -> Array:
    """Return each row's pages one after the other, `[B, S, ...]`."""
    pages = jnp.take(pool, page_table_BP, axis=0, mode="clip")
    return pages.reshape(pages.shape[0], -1, *pool.shape[2:])
