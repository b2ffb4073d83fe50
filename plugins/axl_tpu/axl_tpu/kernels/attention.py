"""Flash attention of our own on TPU: the whole vocabulary of the op but bias.

Forward and backward are kernels of their own, chosen independently. Blocks that causality, windows,
documents, key ranges or offsets hide are neither computed nor fetched (`attention_visits.py`).
Products take the inputs' dtype and accumulate in float32; all else is float32. Nothing that grows
with queries times keys is ever in memory, and keys and values are not repeated for grouped heads.
Under a mesh each device works on its own rows and heads.

Letters: B batch, T queries, S keys, N query heads, K key heads, H key width, V value width.

Source: Dao et al. 2022, arXiv:2205.14135.
"""

from functools import partial
from typing import Any

import attrs
from jax import Array

from axcore.ops import (
    ATTENTION_BACKWARD,
    AttentionInputs,
    AttentionSpec,
    Call,
    ForwardOnly,
    attention_call,
    attention_parts,
    choose_tiles,
    row_delta,
    sink_gradient,
)
from axcore.parallel import backward_on_each_device, forward_on_each_device
from axl_tpu.kernels.attention_backward_at_once import backward_at_once
from axl_tpu.kernels.attention_backward_keys import backward_keys
from axl_tpu.kernels.attention_backward_queries import backward_queries
from axl_tpu.kernels.attention_forward import forward
from axl_tpu.kernels.attention_operands import Operands, heads_first
from axl_tpu.kernels.attention_tiles import (
    BACKWARD_TILES,
    TILES,
    BackwardTiles,
    ForwardTiles,
    at_once_bytes,
    block_size,
)
from axl_tpu.kernels.attention_visits import MAX_BLOCKS, MAX_VISITS, Cut, most_visits, visits

MAX_WIDTH = 256
"""Largest head width whose blocks were seen to fit VMEM on every generation."""


def accepts(call: Call) -> str | None:
    """Returns None where these kernels can serve the call, else the reason why not."""
    if call.dtype("q") not in ("bfloat16", "float32"):
        return f"takes bfloat16 and float32, not {call.dtype('q')}"
    if call.has("bias"):
        return "takes no bias"
    for name in ("q", "k", "v"):
        if 0 in call.shape(name):
            return f"takes no empty array, not {name} {call.shape(name)}"
        width = call.shape(name)[-1]
        if width % 8 or width > MAX_WIDTH:
            return f"takes widths of {name} that are multiples of 8 up to {MAX_WIDTH}, not {width}"
    return _too_long(call)


def _too_long(call: Call) -> str | None:
    inputs, spec = attention_parts(call)
    size = block_size(call)
    cut = Cut.of(inputs, size, size)
    longest = max(cut.queries.length, cut.keys.length)
    if longest > MAX_BLOCKS * size:
        return f"takes up to {MAX_BLOCKS * size} queries or keys, not {longest}"
    num_visits = most_visits(cut, spec, offset_is_static=inputs.query_offset_B is None)
    if num_visits > MAX_VISITS:
        return f"takes up to {MAX_VISITS} pairs of blocks of {size} in a row, not {num_visits}"
    return None


def flash_attention(
    inputs: AttentionInputs, spec: AttentionSpec, *, interpret: Any = False
) -> tuple[Array, Array]:
    """Returns `(o_BTNV, lse_BTN)`.

    Args:
        inputs: Arrays of a call that `accepts` takes.
        spec: The call's static choices.
        interpret: Runs the kernel by an interpreter, on any device.
    """
    tiles = choose_tiles(TILES, attention_call(inputs, spec, with_lse=True))
    forward = partial(_forward, tiles=tiles, interpret=interpret)
    return forward_on_each_device(forward, inputs, spec)


def _forward(
    inputs: AttentionInputs, spec: AttentionSpec, *, tiles: ForwardTiles, interpret: Any
) -> tuple[Array, Array]:
    cut = Cut.of(inputs, tiles.block_q, tiles.block_k)
    walk = visits(inputs, spec, cut, by_keys=False)
    o_BNTV, lse_BN1T = forward(Operands.of(inputs), spec, cut, walk, interpret=interpret)
    return heads_first(o_BNTV), heads_first(lse_BN1T[:, :, 0])


def flash_attention_backward(
    inputs: AttentionInputs,
    spec: AttentionSpec,
    *,
    o_BTNV: Array,
    lse_BTN: Array,
    do_BTNV: Array,
    dlse_BTN: Array,
    interpret: Any = False,
) -> AttentionInputs:
    """Returns the gradients of a call's arrays; None for parts that carry none.

    Args:
        inputs: Arrays of a call that `accepts` takes.
        spec: The call's static choices.
        o_BTNV: The output.
        lse_BTN: Its log-sum-exp.
        do_BTNV: Gradient of the output.
        dlse_BTN: Gradient of the log-sum-exp.
        interpret: Runs the kernels by an interpreter, on any device.
    """
    call = attrs.evolve(attention_call(inputs, spec, with_lse=True), op=ATTENTION_BACKWARD)
    tiles = choose_tiles(BACKWARD_TILES, call)
    vmem_bytes = at_once_bytes(call, tiles.dkv_block_q, tiles.dkv_block_k)
    return backward_on_each_device(
        partial(_backward, tiles=tiles, vmem_bytes=vmem_bytes, interpret=interpret),
        inputs,
        spec,
        o_BTNV=o_BTNV,
        lse_BTN=lse_BTN,
        do_BTNV=do_BTNV,
        dlse_BTN=dlse_BTN,
    )


def _backward(
    inputs: AttentionInputs,
    spec: AttentionSpec,
    *,
    o_BTNV: Array,
    lse_BTN: Array,
    do_BTNV: Array,
    dlse_BTN: Array,
    tiles: BackwardTiles,
    vmem_bytes: int,
    interpret: Any,
) -> AttentionInputs:
    delta_BTN = row_delta(o_BTNV, do_BTNV, dlse_BTN)
    operands = Operands.of(inputs).with_gradients(do_BTNV, lse_BTN, delta_BTN)
    cut = Cut.of(inputs, tiles.dkv_block_q, tiles.dkv_block_k)
    walk = visits(inputs, spec, cut, by_keys=True)
    if tiles.at_once:
        dq_BNTH, dk_BKSH, dv_BKSV = backward_at_once(
            operands, spec, cut, walk, vmem_bytes=vmem_bytes, interpret=interpret
        )
    else:
        dk_BKSH, dv_BKSV = backward_keys(operands, spec, cut, walk, interpret=interpret)
        cut = Cut.of(inputs, tiles.dq_block_q, tiles.dq_block_k)
        walk = visits(inputs, spec, cut, by_keys=False)
        dq_BNTH = backward_queries(operands, spec, cut, walk, interpret=interpret)
    return AttentionInputs(
        q_BTNH=heads_first(dq_BNTH),
        k_BSKH=heads_first(dk_BKSH),
        v_BSKV=heads_first(dv_BKSV),
        sinks_N=sink_gradient(inputs.sinks_N, lse_BTN, delta_BTN),
    )


tpu_flash_attention = ForwardOnly(flash_attention)
