"""Flash attention of our own on TPU: every option of the op but bias.

Forward and backward are kernels of their own, chosen independently. Blocks that causality, windows,
documents, key ranges or offsets hide are neither computed nor fetched (`block_schedule.py`).
Products take the inputs' dtype and accumulate in float32; all else is float32. Nothing that grows
with queries times keys is ever in memory, and keys and values are not repeated for grouped heads.

Letters: B batch, T queries, S keys, N query heads, K key heads, H key width, V value width.

Source: Dao et al. 2022, arXiv:2205.14135.
"""

from typing import Any

import attrs
from jax import Array

from axcore.ops import (
    ATTENTION_OP,
    AttentionInputs,
    AttentionSpec,
    Call,
    choose_block_sizes,
    row_delta,
    sink_gradient,
)
from axl_tpu.kernels.attention.backward_fused import backward_fused
from axl_tpu.kernels.attention.backward_keys import backward_keys
from axl_tpu.kernels.attention.backward_queries import backward_queries
from axl_tpu.kernels.attention.block_schedule import (
    MAX_BLOCKS,
    MAX_SCHEDULE_STEPS,
    Blocking,
    block_schedule,
    max_schedule_steps,
)
from axl_tpu.kernels.attention.block_sizes import (
    BACKWARD_BLOCK_SIZES,
    BLOCK_SIZES,
    block_size,
    fused_bytes,
)
from axl_tpu.kernels.attention.forward import forward
from axl_tpu.kernels.attention.gradients import row_delta_of
from axl_tpu.kernels.attention.operands import Heads, Layout, Operands, swap

MAX_WIDTH = 256
"""Largest head width whose blocks were seen to fit VMEM on every generation."""


def unsupported_reason(call: Call) -> str | None:
    """Return None where these kernels can serve the call, else the reason why not."""
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
    inputs, spec = ATTENTION_OP.parts(call)
    # By the default size: a table's may be larger, but then there are fewer blocks.
    size = block_size(call)
    cut = Blocking.of(inputs, size, size)
    longest = max(cut.queries.length, cut.keys.length)
    if longest > MAX_BLOCKS * size:
        return f"takes up to {MAX_BLOCKS * size} queries or keys, not {longest}"
    num_schedule_steps = max_schedule_steps(
        cut, spec, offset_is_static=inputs.query_offset_B is None
    )
    if num_schedule_steps > MAX_SCHEDULE_STEPS:
        return (
            f"takes up to {MAX_SCHEDULE_STEPS} pairs of blocks of {size} in a row, not "
            f"{num_schedule_steps}"
        )
    return None


def tpu_flash_attention(
    inputs: AttentionInputs, spec: AttentionSpec, *, interpret: Any = False
) -> tuple[Array, Array]:
    """Return `(o_BTNV, lse_BTN)`.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: The call's static choices.
        interpret: Runs the kernel by an interpreter, on any device.
    """
    block_sizes = choose_block_sizes(BLOCK_SIZES, ATTENTION_OP.call(inputs, spec, lse=True))
    cut = Blocking.of(inputs, block_sizes.block_q, block_sizes.block_k)
    walk = block_schedule(inputs, spec, cut, by_keys=False)
    layout = Layout.of(inputs)
    o, lse_BN1T = forward(Operands.of(inputs), layout, spec, cut, walk, interpret=interpret)
    return layout.o.lift(o), swap(lse_BN1T[:, :, 0])


def tpu_flash_attention_backward(
    inputs: AttentionInputs,
    spec: AttentionSpec,
    *,
    o_BTNV: Array,
    lse_BTN: Array,
    do_BTNV: Array,
    dlse_BTN: Array,
    interpret: Any = False,
) -> AttentionInputs:
    """Return the gradients of a call's arrays; None for parts that carry none.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: The call's static choices.
        o_BTNV: The output.
        lse_BTN: Its log-sum-exp.
        do_BTNV: Gradient of the output.
        dlse_BTN: Gradient of the log-sum-exp.
        interpret: Runs the kernels by an interpreter, on any device.
    """
    call = attrs.evolve(ATTENTION_OP.call(inputs, spec, lse=True), op=ATTENTION_OP.backward)
    block_sizes = choose_block_sizes(BACKWARD_BLOCK_SIZES, call)
    # Of this call's own sizes, which may come from a table: the compiler refuses a kernel that
    # overflows what it was allowed.
    vmem_bytes = fused_bytes(call, block_sizes.dkv_block_q, block_sizes.dkv_block_k)
    layout = Layout.of(inputs)
    # Once for all heads, before: both backward kernels read it, and in a visit it would be
    # computed again for each block of keys.
    delta_BTN = _row_delta(o_BTNV, do_BTNV, dlse_BTN, layout.o, interpret=interpret)
    operands = Operands.of(inputs).with_gradients(do_BTNV, lse_BTN, delta_BTN)
    cut = Blocking.of(inputs, block_sizes.dkv_block_q, block_sizes.dkv_block_k)
    walk = block_schedule(inputs, spec, cut, by_keys=True)
    if block_sizes.at_once:
        dq, dk, dv = backward_fused(
            operands, layout, spec, cut, walk, vmem_bytes=vmem_bytes, interpret=interpret
        )
    else:
        # Two walks, each with its own sums in VMEM. A gradient is summed only along the axis that
        # a walk goes through, so nothing is added up in memory.
        dk, dv = backward_keys(operands, layout, spec, cut, walk, interpret=interpret)
        cut = Blocking.of(inputs, block_sizes.dq_block_q, block_sizes.dq_block_k)
        walk = block_schedule(inputs, spec, cut, by_keys=False)
        dq = backward_queries(operands, layout, spec, cut, walk, interpret=interpret)
    return AttentionInputs(
        q_BTNH=layout.q.lift(dq),
        k_BSKH=layout.k.lift(dk),
        v_BSKV=layout.v.lift(dv),
        sinks_N=sink_gradient(inputs.sinks_N, lse_BTN, delta_BTN),
    )


def _row_delta(
    o_BTNV: Array, do_BTNV: Array, dlse_BTN: Array, heads: Heads, *, interpret: Any
) -> Array:
    if not heads.are_side_by_side:
        return row_delta(o_BTNV, do_BTNV, dlse_BTN)
    delta_BN1T = row_delta_of(heads.lay(o_BTNV), heads.lay(do_BTNV), heads, interpret=interpret)
    return swap(delta_BN1T[:, :, 0]) - dlse_BTN
