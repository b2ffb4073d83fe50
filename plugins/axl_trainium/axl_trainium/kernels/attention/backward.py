"""The backward half of the attention op by NKI kernels; see `attention.py`."""

import jax
from jax import Array

from axcore.ops import (
    AttentionInputs,
    AttentionSpec,
    Call,
    finite_lse,
    row_delta,
    sink_gradient,
)
from axl_trainium.calling import call_kernel
from axl_trainium.kernels.attention.api import (
    sbuf_overflow_reason,
    transposed_columns,
    unsupported_call_reason,
)
from axl_trainium.kernels.attention.items import Items, key_ranges, static_choices
from axl_trainium.kernels.attention.nki_backward import attention_dkv, attention_dq


def unsupported_reason(call: Call) -> str | None:
    """Return None where the kernels can serve the call, else the reason why not.

    The keys and values of a head, both transposed, must stay in SBUF.
    """
    keys, width, value_width = call.shape("k")[1], call.shape("k")[-1], call.shape("v")[-1]
    columns = transposed_columns(width) + transposed_columns(value_width)
    return unsupported_call_reason(call) or sbuf_overflow_reason(call, columns * keys)


def nki_flash_attention_backward(
    inputs: AttentionInputs,
    spec: AttentionSpec,
    *,
    o_BTNV: Array,
    lse_BTN: Array,
    do_BTNV: Array,
    dlse_BTN: Array,
) -> AttentionInputs:
    """Return the gradients of a call's arrays from its output and log-sum-exp.

    Products take the inputs' dtype and accumulate in float32. Cost: each visible tile twice.
    """
    items, ranges = Items.of(inputs), key_ranges(inputs, spec)
    delta_BTN = row_delta(o_BTNV, do_BTNV, dlse_BTN)
    arrays = (
        items.rows(inputs.q_BTNH),
        items.keys(inputs.k_BSKH),
        items.keys(inputs.v_BSKV),
        items.queries(ranges.start_BT),
        items.queries(ranges.end_BT),
        items.rows(do_BTNV.astype(inputs.q_BTNH.dtype)),
        # Negated, since activations on the chip add a bias and subtract none.
        items.rows(-finite_lse(lse_BTN)[..., None]),
        items.rows(delta_BTN[..., None]),
    )
    q, k, v = (jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays[:3])
    choices = static_choices(inputs, spec)
    dq_XRH = call_kernel(attention_dq, q, *arrays, **choices)
    dk_XSH, dv_XSV = call_kernel(attention_dkv, (k, v), *arrays, **choices)
    return AttentionInputs(
        items.from_rows(dq_XRH),
        items.from_keys(dk_XSH),
        items.from_keys(dv_XSV),
        sinks_N=sink_gradient(inputs.sinks_N, lse_BTN, delta_BTN),
    )
