"""The attention op by NKI kernels, forward and backward.

Each query sees one range of keys, so documents must be in one piece; the predicate cannot see
whether they do, and a query of one that does not gives NaN.

Letters: B batch, T queries, S keys, N query heads, K key heads, H key width, V value width; X = B *
K items, R = N // K * T rows of an item.
"""

import jax
import jax.numpy as jnp
from jax import Array

from axcore.ops import AttentionInputs, AttentionSpec, Call
from axl_trainium.calling import call_kernel, float32_like
from axl_trainium.hardware import PARTITIONS, SBUF_PARTITION_BYTES, unsupported_dtype_reason
from axl_trainium.kernels.attention.items import Items, key_ranges, static_choices
from axl_trainium.kernels.attention.nki_forward import FLOOR, attention_forward

WIDEST = 512
"""A row of values, or of their gradients, must fit a bank of PSUM."""

LAST_PLACE = 2**24
"""Places up to here are exact in float32."""

WORKING_BYTES = 32 * 1024
"""Of a partition of SBUF, for what is not kept while all of an item's queries go by."""


def unsupported_reason(call: Call) -> str | None:
    """Return None where the kernel can serve the call, else the reason why not.

    The keys, transposed, and the values of a head must stay in SBUF.
    """
    keys, width, value_width = call.shape("k")[1], call.shape("k")[-1], call.shape("v")[-1]
    values = -(-keys // PARTITIONS) * value_width
    return unsupported_call_reason(call) or sbuf_overflow_reason(
        call, transposed_columns(width) * keys + values
    )


def unsupported_call_reason(call: Call) -> str | None:
    """Return None where the kernels, forward and backward, compute what is asked for."""
    for array in ("bias", "dropout_seeds"):
        if call.has(array):
            return f"takes no {array}"
    q, k, v = (call.shape(name) for name in ("q", "k", "v"))
    if 0 in (*q, *k, *v):
        return f"takes one row, key, head and column or more, not q {q}, k {k} and v {v}"
    for name, width in (("keys", k[-1]), ("values", v[-1])):
        if width > WIDEST:
            return f"takes widths of {name} to {WIDEST}, not {width}"
    if max(q[1], k[1]) > LAST_PLACE:
        return f"takes up to {LAST_PLACE} tokens, not {max(q[1], k[1])}"
    return unsupported_dtype_reason(call.dtype("q"))


def sbuf_overflow_reason(call: Call, elements: int) -> str | None:
    """Return None where so many elements of a partition can be kept in SBUF, else why not."""
    kept, room = elements * jnp.dtype(call.dtype("q")).itemsize, SBUF_PARTITION_BYTES
    if kept + WORKING_BYTES <= room:
        return None
    return (
        f"takes keys and values that need up to {room - WORKING_BYTES} bytes of a partition of "
        f"SBUF, not {kept} as these of {call.shape('k')[1]} keys do"
    )


def transposed_columns(width: int) -> int:
    """Return the columns that a row takes when it is transposed."""
    return -(-width // PARTITIONS)


def nki_flash_attention(inputs: AttentionInputs, spec: AttentionSpec) -> tuple[Array, Array]:
    """Return `(o_BTNV, lse_BTN)`; see `axcore.ops.attention.api`.

    Products take the inputs' dtype and accumulate in float32; all else is float32. Tiles are of 128
    queries and 512 keys. Cost: reads keys and values once for a key head, writes the output once;
    tiles that causality or a window hide from all of their queries are passed over.
    """
    items, ranges = Items.of(inputs), key_ranges(inputs, spec)
    q_XRH, k_XSH = items.rows(inputs.q_BTNH), items.keys(inputs.k_BSKH)
    v_XSV = items.keys(inputs.v_BSKV)
    num_items, num_rows, _ = q_XRH.shape
    outputs = (
        jax.ShapeDtypeStruct((num_items, num_rows, v_XSV.shape[2]), q_XRH.dtype),
        float32_like(num_items, num_rows, 1),
    )
    bounds = (items.queries(ranges.start_BT), items.queries(ranges.end_BT))
    starts = () if inputs.sinks_N is None else (_starts(inputs, items),)
    choices = static_choices(inputs, spec) | ({"start_XR2": None} if not starts else {})
    o_XRV, lse_XR1 = call_kernel(
        attention_forward, outputs, q_XRH, k_XSH, v_XSV, *bounds, *starts, **choices
    )
    o_BTNV, lse_BTN = items.from_rows(o_XRV), items.from_rows(lse_XR1)[..., 0]
    # The kernel's finite floor means -inf, which the op asks for.
    lse_BTN = jnp.where(lse_BTN < FLOOR / 2, -jnp.inf, lse_BTN)
    if ranges.is_exact_BT is None:
        return o_BTNV, lse_BTN
    # A query whose document is in pieces would see what is between them: plausible and wrong, and
    # nobody would notice.
    nan_BT = jnp.where(ranges.is_exact_BT, 0.0, jnp.nan)
    poison_BTN = jnp.broadcast_to(nan_BT[:, :, None], lse_BTN.shape)
    return o_BTNV + poison_BTN[..., None].astype(o_BTNV.dtype), lse_BTN + poison_BTN


def _starts(inputs: AttentionInputs, items: Items) -> Array:
    """Return the maximum and the sum that rows begin with, which are those of their sink."""
    assert inputs.sinks_N is not None
    sinks_N = inputs.sinks_N.astype(jnp.float32)
    # A sink of -inf is none: its exponential is then 0, and not that of NaN.
    most_N = jnp.maximum(sinks_N, FLOOR)
    time = inputs.q_BTNH.shape[1]
    parts = (items.heads(part, time) for part in (most_N, jnp.exp(sinks_N - most_N)))
    return jnp.stack(tuple(parts), axis=-1)
