"""The attention op on NVIDIA GPUs: the flash attention of the cuDNN library.

It takes causal, left-window and full attention. Segments go in as a bias of two bytes per pair of
tokens, shared by the heads of a row; `cudnn_packed` needs none.

Letters: B batch, T queries, S keys, N query heads, K key heads, H key width, V value width.
"""

import jax.numpy as jnp
from jax import Array

from axcore.ops import AttentionInputs, AttentionSpec, Call
from axl_gpu.kernels.attention.cudnn_call import (
    CUDNN,
    DTYPES,
    FlashArrays,
    FlashSpec,
    Library,
    flash,
)

MAX_WIDTH = 128
"""Largest head width on every generation."""

MAX_WIDE_WIDTH = 256
"""Largest from Hopper on."""

# Not -inf, of which a row of nothing else would give NaN. -2^15 is what float16 holds with room
# to add a logit; bfloat16 holds far more.
HIDDEN = {"bfloat16": -(2.0**41), "float16": -(2.0**15)}
"""Added to hidden logits. cuDNN subtracts such numbers, so they are far from the largest."""


def unsupported_reason(call: Call) -> str | None:
    """Return None where cuDNN attention can serve the call on any GPU, else the reason why not."""
    return (
        unsupported_arrays_reason(call)
        or unsupported_widths_reason(call)
        or unsupported_mask_reason(call)
    )


def wide_unsupported_reason(call: Call) -> str | None:
    """Return None where the call takes a Hopper or later, else the reason why not."""
    if unsupported_widths_reason(call) is None:
        return f"takes widths over {MAX_WIDTH}, or values of another width than keys"
    widths = (call.shape("k")[-1], call.shape("v")[-1])
    for width in widths:
        if width % 8 or width > MAX_WIDE_WIDTH:
            return f"takes widths that are multiples of 8 up to {MAX_WIDE_WIDTH}, not {width}"
    return unsupported_arrays_reason(call) or unsupported_mask_reason(call)


def unsupported_widths_reason(call: Call) -> str | None:
    """Return None where the heads' widths suit every GPU, else the reason why not."""
    width, value_width = call.shape("k")[-1], call.shape("v")[-1]
    if width != value_width:
        return f"takes values as wide as keys, not {value_width} and {width}"
    if width % 8 or width > MAX_WIDTH:
        return f"takes widths that are multiples of 8 up to {MAX_WIDTH}, not {width}"
    return None


def unsupported_arrays_reason(call: Call) -> str | None:
    """Return None where cuDNN takes the dtype and the parts of the call, else why not."""
    if call.dtype("q") not in DTYPES:
        return f"takes {' and '.join(DTYPES)}, not {call.dtype('q')}"
    for array in ("k_start", "bias", "sinks", "dropout_seeds"):
        if call.has(array):
            return f"takes no {array}"
    if call.feature("soft_cap") is not None:
        return "takes no soft_cap"
    if call.feature("lse"):
        return "gives no gradient of the log-sum-exp"
    return None


def unsupported_mask_reason(call: Call) -> str | None:
    """Return None where cuDNN can hide what the call hides, else why not."""
    num_queries, num_keys = call.shape("q")[1], call.shape("k")[1]
    left, right = call.feature("left"), call.feature("right")
    if call.feature("query_offset") or call.has("query_offset"):
        return "takes no query offset"
    if right not in (None, 0):
        return f"takes no window to the right, not even one of {right}"
    if left is not None and right is None:
        return "takes a window to the left only where attention is causal"
    if not call.has("q_segments"):
        return None
    if num_queries != num_keys:
        return f"takes segments of as many keys as queries, not {num_keys} and {num_queries}"
    if num_queries % 2:
        return f"takes segments of an even number of tokens, not {num_queries}"
    return None


def cudnn_attention(
    inputs: AttentionInputs, spec: AttentionSpec, *, library: Library = CUDNN
) -> tuple[Array, Array]:
    """Return `(o_BTNV, zeros)`: `unsupported_reason` refuses calls that ask for the log-sum-exp.

    Args:
        inputs: Arrays of a call that `unsupported_reason`, or `wide_unsupported_reason`, takes.
        spec: The call's static choices.
        library: cuDNN, or what stands in for it where there is no GPU.
    """
    has_own_keys = inputs.q_segments_BT is inputs.k_segments_BS
    qkv = inputs.q_BTNH, inputs.k_BSKH, inputs.v_BSKV
    o_BTNV = flash(FlashArrays(*qkv, _bias(inputs)), flash_spec(spec), library)
    if inputs.q_segments_BT is not None:
        # A query sees at least its own key, unless it is padding.
        sees_BT = inputs.q_segments_BT != 0 if has_own_keys else _sees_anything(inputs, spec)
        o_BTNV = jnp.where(sees_BT[:, :, None, None], o_BTNV, jnp.zeros((), o_BTNV.dtype))
    return o_BTNV, jnp.zeros(o_BTNV.shape[:-1], jnp.float32)


def flash_spec(spec: AttentionSpec, *, num_documents: int = 1) -> FlashSpec:
    """Return cuDNN's static choices: packed where there are several documents in a row."""
    causal = spec.right == 0
    if num_documents > 1:
        mask = "PADDING_CAUSAL" if causal else "PADDING"
    else:
        mask = "CAUSAL" if causal else "NO_MASK"
    # cuDNN counts the query's own key as one of the window, the op does not; 0 means no window at
    # all.
    window = 0 if spec.left is None else spec.left + 1
    return FlashSpec(scale=spec.scale, mask=mask, window=window, num_documents=num_documents)


def _bias(inputs: AttentionInputs) -> Array | None:
    """Return what hides other segments; padding is one of them, so that no row is empty."""
    q_segments_BT, k_segments_BS = inputs.q_segments_BT, inputs.k_segments_BS
    if q_segments_BT is None or k_segments_BS is None:
        return None
    is_same_B1TS = q_segments_BT[:, None, :, None] == k_segments_BS[:, None, None, :]
    # No causal part: cuDNN has a mask for that, by which it can leave blocks out.
    dtype = inputs.q_BTNH.dtype
    return jnp.where(is_same_B1TS, jnp.zeros((), dtype), jnp.asarray(HIDDEN[dtype.name], dtype))


def _sees_anything(inputs: AttentionInputs, spec: AttentionSpec) -> Array:
    """Return which queries `[B, T]` see any key; cuDNN gives the others a mean of keys.

    The comparison of all pairs is fused into the reduction; it is never stored.
    """
    q_segments, k_segments = inputs.q_segments_BT, inputs.k_segments_BS
    assert q_segments is not None
    assert k_segments is not None
    # By causality or a window a query may miss the keys of its segment, if they are not at its
    # own places.
    place = jnp.arange(q_segments.shape[1])
    distance_TS = place[None, :] - place[:, None]
    near_TS = jnp.ones(distance_TS.shape, bool)
    if spec.left is not None:
        near_TS &= distance_TS >= -spec.left
    if spec.right is not None:
        near_TS &= distance_TS <= spec.right
    same_BTS = q_segments[:, :, None] == k_segments[:, None, :]
    return jnp.any(same_BTS & (k_segments != 0)[:, None, :] & near_TS[None], axis=-1)
