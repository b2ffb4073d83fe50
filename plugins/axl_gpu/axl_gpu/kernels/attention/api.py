"""The attention op on Hopper GPUs, by kernels of our own: forward, and gradients, causal ones too.

What a query sees is given to them as a range of keys, so causality, windows, offsets and key ranges
cost the same; segments are compared where a block is not all of one. Blocks in which no query
sees a key are neither fetched nor computed. Sums are float32; queries, keys and
values are rounded to nothing narrower than they come in, probabilities and gradients of logits to
the inputs' dtype where they are multiplied.

Memory in addition to inputs and outputs: 12 bytes a query head and query; where one kernel computes
    all
gradients, four more for each element of the queries. Widths are padded with zeros to
multiples of 64, and lengths to full blocks.

Letters: B batch, T queries, S keys, N query heads, K key heads, H key width, V value width.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from axcore.ops import (
    ATTENTION_OP,
    AttentionInputs,
    AttentionSpec,
    Call,
    choose_block_sizes,
    finite_lse,
    row_delta,
    sink_gradient,
)
from axl_gpu.kernels.attention.arrays import Arrays, Choices, ForwardBlockSizes, Residuals
from axl_gpu.kernels.attention.block import LOG2_E
from axl_gpu.kernels.attention.block_sizes import (
    BACKWARD_BLOCK_SIZES,
    FORWARD_BLOCK_SIZES,
    BackwardBlockSizes,
)
from axl_gpu.kernels.attention.block_sparsity import padded, spans, visibility
from axl_gpu.kernels.attention.forward import tuned_forward
from axl_gpu.kernels.attention.fused_gradients import fused_gradients
from axl_gpu.kernels.attention.key_gradients import tuned_key_gradients
from axl_gpu.kernels.attention.matmuls import TENSOR_CORES, Matmuls
from axl_gpu.kernels.attention.query_gradients import tuned_query_gradients
from axl_gpu.kernels.attention.simple_backward import (
    simple_key_gradients,
    simple_query_gradients,
)
from axl_gpu.kernels.attention.simple_forward import simple_forward

DTYPES = ("bfloat16", "float16")
WIDTH_STEP = 64
"""Elements of a row that shared memory is laid out in."""

MAX_WIDTH = 256
"""Widest head whose sums fit the registers of a warp group."""


def unsupported_reason(call: Call) -> str | None:
    """Return None where the kernels can serve the call, else the reason why not."""
    if call.dtype("q") not in DTYPES:
        return f"takes {' and '.join(DTYPES)}, not {call.dtype('q')}"
    for array in ("bias", "dropout_seeds"):
        if call.has(array):
            return f"takes no {array}"
    for array in ("k", "v"):
        if not 0 < call.shape(array)[3] <= MAX_WIDTH:
            return f"takes widths up to {MAX_WIDTH}, not {array}'s {call.shape(array)[3]}"
    for array in ("q", "k"):
        if 0 in call.shape(array):
            return f"takes no empty array, not {array} {call.shape(array)}"
    return None


def packed_unsupported_reason(call: Call) -> str | None:
    """Return None where the call has documents for which cuDNN would need much memory.

    cuDNN takes segments as a bias of two bytes a pair of tokens; here it is too much where it is
    larger than the queries.
    """
    if not call.has("q_segments"):
        return "takes segments, and there are none"
    _, _, num_heads, width = call.shape("q")
    num_keys = call.shape("k")[1]
    if num_keys < num_heads * width:
        return (
            f"takes {num_heads * width} keys or more, where a bias is larger than the queries, "
            f"not {num_keys}"
        )
    return unsupported_reason(call)


class Form(NamedTuple):
    """One form of the kernels: functions of arrays, spans and choices.

    `gradients` is of queries, keys and values in one kernel; None where there are but two.
    """

    forward: Any
    query_gradients: Any
    key_gradients: Any
    gradients: Any = None


TUNED = Form(tuned_forward, tuned_query_gradients, tuned_key_gradients, fused_gradients)
"""Several warp groups, of which one fetches."""

SIMPLE = Form(simple_forward, simple_query_gradients, simple_key_gradients)
"""One warp group and nothing overlapped: what `TUNED` is held to be equal to. It runs only in
tests, with tiles of one group.
"""


def gpu_flash_attention(
    inputs: AttentionInputs,
    spec: AttentionSpec,
    *,
    form: Form = TUNED,
    products: Matmuls = TENSOR_CORES,
) -> tuple[Array, Array]:
    """Return `(o_BTNV, lse_BTN)`.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: The call's static choices.
        form: The kernels.
        products: What multiplies; an interpreter needs `ARITHMETIC`.
    """
    blocks = choose_block_sizes(FORWARD_BLOCK_SIZES, ATTENTION_OP.call(inputs, spec, lse=True))
    return _forward(inputs, spec, blocks, form=form, products=products)


def gpu_flash_attention_backward(
    inputs: AttentionInputs,
    spec: AttentionSpec,
    *,
    o_BTNV: Array,
    lse_BTN: Array,
    do_BTNV: Array,
    dlse_BTN: Array,
    form: Form = TUNED,
    products: Matmuls = TENSOR_CORES,
) -> AttentionInputs:
    """Return the gradients of a call's arrays from its output and log-sum-exp.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: The call's static choices.
        o_BTNV: The output.
        lse_BTN: The log-sum-exp.
        do_BTNV: Gradient of the output.
        dlse_BTN: Gradient of the log-sum-exp.
        form: The kernels.
        products: What multiplies; an interpreter needs `ARITHMETIC`.
    """
    block_sizes = choose_block_sizes(
        BACKWARD_BLOCK_SIZES, ATTENTION_OP.call(inputs, spec, lse=True)
    )
    rows = {"o_BTNV": o_BTNV, "lse_BTN": lse_BTN, "do_BTNV": do_BTNV, "dlse_BTN": dlse_BTN}
    return _backward(inputs, spec, block_sizes, form=form, products=products, **rows)


def _forward(
    inputs: AttentionInputs,
    spec: AttentionSpec,
    blocks: ForwardBlockSizes,
    *,
    form: Form,
    products: Matmuls,
) -> tuple[Array, Array]:
    _, num_queries, num_heads, _ = inputs.q_BTNH.shape
    rows = blocks.queries * blocks.num_groups
    arrays = _arrays(inputs, spec, rows=rows, columns=blocks.keys)
    # Spans are of a full thread block, all of whose groups go through the same blocks in step.
    of_queries_BQ4, _ = _spans(arrays, rows=rows, columns=blocks.keys)
    # -inf is a sink that adds nothing, so that kernels need no form without.
    sinks_N = jnp.full((num_heads,), -jnp.inf, jnp.float32)
    if inputs.sinks_N is not None:
        sinks_N = inputs.sinks_N.astype(jnp.float32)
    choices = Choices(scale=spec.scale, soft_cap=spec.soft_cap, blocks=blocks)
    o_BTNV, lse_BNT = form.forward(arrays, of_queries_BQ4, sinks_N, choices, products)
    width = inputs.v_BSKV.shape[3]
    lse_BTN = jnp.swapaxes(lse_BNT, 1, 2)[:, :num_queries]
    return o_BTNV[:, :num_queries, :, :width], lse_BTN


def _backward(
    inputs: AttentionInputs,
    spec: AttentionSpec,
    block_sizes: BackwardBlockSizes,
    *,
    form: Form,
    products: Matmuls,
    o_BTNV: Array,
    lse_BTN: Array,
    do_BTNV: Array,
    dlse_BTN: Array,
) -> AttentionInputs:
    delta_BTN = row_delta(o_BTNV, do_BTNV, dlse_BTN)
    rows, columns = (
        block_sizes.num_groups * block_sizes.dq_queries,
        block_sizes.num_groups * block_sizes.dkv_keys,
    )
    arrays = _arrays(
        inputs,
        spec,
        # Both backward kernels read the same padded arrays, and each goes over queries and keys
        # in blocks of its own.
        rows=math.lcm(rows, block_sizes.dkv_queries),
        columns=math.lcm(columns, block_sizes.dq_keys),
    )
    num_queries, value_width = arrays.q_BTNH.shape[1], arrays.v_BSKV.shape[3]
    residuals = Residuals(
        _to_shape(do_BTNV.astype(arrays.q_BTNH.dtype), {1: num_queries, 3: value_width}),
        # In base 2, as the kernels' logits are. Padded rows get 0: they see nothing, so their
        # probabilities are exp2(-inf - 0) = 0, and add to no key's gradient.
        _by_head(finite_lse(lse_BTN) * LOG2_E, num_queries),
        _by_head(delta_BTN, num_queries),
    )
    dq, dk, dv = _gradients(arrays, residuals, spec, block_sizes, form=form, products=products)
    return AttentionInputs(
        q_BTNH=_cut(dq, inputs.q_BTNH),
        k_BSKH=_cut(dk, inputs.k_BSKH),
        v_BSKV=_cut(dv, inputs.v_BSKV),
        sinks_N=sink_gradient(inputs.sinks_N, lse_BTN, delta_BTN),
    )


def _gradients(
    arrays: Arrays,
    residuals: Residuals,
    spec: AttentionSpec,
    block_sizes: BackwardBlockSizes,
    *,
    form: Form,
    products: Matmuls,
) -> tuple[Array, Array, Array]:
    """Return the gradients of queries, keys and values: a pass by queries and one by keys.

    Where one kernel does both, it sums those of queries in float32 in memory.
    """
    num_groups = block_sizes.num_groups
    choices = partial(Choices, scale=spec.scale, soft_cap=spec.soft_cap)
    _, of_keys_BL4 = _spans(
        arrays, rows=block_sizes.dkv_queries, columns=num_groups * block_sizes.dkv_keys
    )
    by_keys = (arrays, residuals, of_keys_BL4, choices(blocks=block_sizes.dkv), products)
    if block_sizes.num_kernels == 1:
        dq, dk, dv = form.gradients(*by_keys)
        return (dq * spec.scale).astype(arrays.q_BTNH.dtype), dk, dv
    of_queries_BQ4, _ = _spans(
        arrays, rows=num_groups * block_sizes.dq_queries, columns=block_sizes.dq_keys
    )
    by_queries = (arrays, residuals, of_queries_BQ4, choices(blocks=block_sizes.dq), products)
    return form.query_gradients(*by_queries), *form.key_gradients(*by_keys)


def _arrays(inputs: AttentionInputs, spec: AttentionSpec, *, rows: int, columns: int) -> Arrays:
    """Return the call's arrays, padded to multiples of so many queries and keys."""
    num_queries = _rounded(inputs.q_BTNH.shape[1], rows)
    num_keys = _rounded(inputs.k_BSKH.shape[1], columns)
    width = _rounded(inputs.q_BTNH.shape[3], WIDTH_STEP)
    value_width = _rounded(inputs.v_BSKV.shape[3], WIDTH_STEP)
    return Arrays(
        _to_shape(inputs.q_BTNH, {1: num_queries, 3: width}),
        _to_shape(inputs.k_BSKH, {1: num_keys, 3: width}),
        _to_shape(inputs.v_BSKV, {1: num_keys, 3: value_width}),
        *padded(visibility(inputs, spec), num_queries, num_keys),
    )


def _spans(arrays: Arrays, *, rows: int, columns: int) -> tuple[Array, Array]:
    num_keys = arrays.k_BSKH.shape[1]
    return spans(arrays.seen, num_keys=num_keys, block_q=rows, block_k=columns)


def _rounded(size: int, step: int) -> int:
    return -(-size // step) * step


def _to_shape(x: Array, sizes: dict[int, int]) -> Array:
    """Return `x` with zeros after it along some axes."""
    more = [(0, sizes.get(axis, size) - size) for axis, size in enumerate(x.shape)]
    return jnp.pad(x, more) if any(count for _, count in more) else x


def _by_head(x_BTN: Array, num_queries: int) -> Array:
    return jnp.swapaxes(_to_shape(x_BTN, {1: num_queries}), 1, 2)


def _cut(x: Array, like: Array) -> Array:
    return x[:, : like.shape[1], :, : like.shape[3]]
