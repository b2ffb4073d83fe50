"""The attention op on NVIDIA GPUs: the flash attention of cuDNN, as `jax.nn` offers it.

It takes causal, left-window and full attention. Segments go in as a mask of two bytes per pair of
tokens, shared by the heads of a row.

Letters: B batch, T queries, S keys, N query heads, K key heads, H key width, V value width.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

from axcore.ops import AttentionInputs, AttentionSpec, Call
from axcore.parallel import on_each_device

Implementation = Literal["cudnn", "xla"]

MAX_WIDTH = 128
"""Largest head width of all generations; cuDNN goes to 256 on some."""


def accepts(call: Call) -> str | None:
    """Returns None where cuDNN attention can serve the call, else the reason why not."""
    return _why_not_these_arrays(call) or _why_not_this_mask(call)


def _why_not_these_arrays(call: Call) -> str | None:
    if call.dtype("q") not in ("bfloat16", "float16"):
        return f"takes bfloat16 and float16, not {call.dtype('q')}"
    width, value_width = call.shape("k")[-1], call.shape("v")[-1]
    if width != value_width:
        return f"takes values as wide as keys, not {value_width} and {width}"
    if width % 8 or width > MAX_WIDTH:
        return f"takes widths that are multiples of 8 up to {MAX_WIDTH}, not {width}"
    for array in ("k_start", "bias", "sinks", "dropout_seed"):
        if call.has(array):
            return f"takes no {array}"
    if call.feature("soft_cap") is not None:
        return "takes no soft_cap"
    if call.feature("lse"):
        return "gives no gradient of the log-sum-exp"
    return None


def _why_not_this_mask(call: Call) -> str | None:
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


def cudnn_attention(inputs: AttentionInputs, spec: AttentionSpec) -> tuple[Array, Array]:
    """Returns `(o_BTNV, zeros)`: `accepts` refuses calls that ask for the log-sum-exp."""
    return attend(inputs, spec, implementation="cudnn")


def attend(
    inputs: AttentionInputs, spec: AttentionSpec, *, implementation: Implementation
) -> tuple[Array, Array]:
    """Returns what `cudnn_attention` does, by an implementation of `jax.nn`'s choice.

    Args:
        inputs: Arrays of a call that `accepts` takes.
        spec: The call's static choices.
        implementation: "cudnn", or "xla", which runs on any device.
    """
    o_BTNV = on_each_device(partial(_attend, spec=spec, implementation=implementation), inputs)
    return o_BTNV, jnp.zeros(o_BTNV.shape[:-1], jnp.float32)


def _attend(
    inputs: AttentionInputs, *, spec: AttentionSpec, implementation: Implementation
) -> Array:
    same_B1TS = _same_segment(inputs)
    o_BTNV: Array = jax.nn.dot_product_attention(
        inputs.q_BTNH,
        inputs.k_BSKH,
        inputs.v_BSKV,
        mask=same_B1TS,
        scale=spec.scale,
        is_causal=spec.right == 0,
        local_window_size=None if spec.left is None else (spec.left, 0),
        implementation=implementation,
    )
    if same_B1TS is None:
        return o_BTNV
    return jnp.where(_sees_anything(inputs, spec), o_BTNV, jnp.zeros((), o_BTNV.dtype))


def _same_segment(inputs: AttentionInputs) -> Array | None:
    """Returns which pairs are of one segment, padding counted as a segment, so no row is empty."""
    if inputs.q_segments_BT is None or inputs.k_segments_BS is None:
        return None
    return inputs.q_segments_BT[:, None, :, None] == inputs.k_segments_BS[:, None, None, :]


def _sees_anything(inputs: AttentionInputs, spec: AttentionSpec) -> Array:
    """Returns which queries `[B, T, 1, 1]` see any key; cuDNN gives the others a mean of keys.

    The comparison of all pairs is fused into the reduction; it is never stored.
    """
    q_segments, k_segments = inputs.q_segments_BT, inputs.k_segments_BS
    assert q_segments is not None
    assert k_segments is not None
    place = jnp.arange(q_segments.shape[1])
    distance_TS = place[None, :] - place[:, None]
    near_TS = jnp.ones(distance_TS.shape, bool)
    if spec.left is not None:
        near_TS &= distance_TS >= -spec.left
    if spec.right is not None:
        near_TS &= distance_TS <= spec.right
    same_BTS = q_segments[:, :, None] == k_segments[:, None, :]
    sees_BT = jnp.any(same_BTS & (k_segments != 0)[:, None, :] & near_TS[None], axis=-1)
    return sees_BT[:, :, None, None]
