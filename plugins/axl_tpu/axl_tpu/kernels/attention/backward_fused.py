"""The kernel for all gradients at once, on the grid (batch row, key head, query head of it, visit).

Scores and probabilities are computed once, where two kernels would compute them twice: a visit has
five products in place of seven. For that the gradients of full rows are summed in VMEM, in
float32, so that it serves rows of a length that fits.

Letters: B batch, T queries, S keys, N query heads, K key heads, H key width, V value width.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from axcore.ops import AttentionSpec
from axl_tpu.kernels.attention.block import BlockShape, column, matmul
from axl_tpu.kernels.attention.block_schedule import (
    FIRST,
    LANES,
    Blocking,
    BlockSchedule,
    has,
    key_block,
    query_block,
)
from axl_tpu.kernels.attention.gradients import key_gradients, when_active
from axl_tpu.kernels.attention.operands import BlockSpecs, Layout, Operands, code_of


def backward_fused(
    operands: Operands,
    layout: Layout,
    spec: AttentionSpec,
    cut: Blocking,
    schedule: BlockSchedule,
    *,
    vmem_bytes: int,
    interpret: Any,
) -> tuple[Array, Array, Array]:
    """Return gradients in the inputs' dtype, their heads as in `layout`; visits go by keys."""
    q, k, v = operands.q, operands.k, operands.v
    specs = BlockSpecs(operands, layout, cut, by_keys=True, heads_are_outer=True)
    # Full blocks, for the last one is added to as a whole; what is past the rows is cut off at
    # the end.
    num_queries, num_keys = (axis.num * axis.size for axis in (cut.queries, cut.keys))
    has_segments = operands.k_segments is not None
    dq, dk, dv = pl.pallas_call(
        partial(_kernel, block=BlockShape(spec, cut, by_keys=True), group=specs.group),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            # Heads outside of visits: a head's gradients of queries are whole when its visits are
            # done, so that VMEM holds one head's at a time, next to the sums of the keys that all
            # share.
            grid=(k.shape[0], layout.k.num, specs.group, schedule.num_steps),
            in_specs=[specs.inputs()],
            out_specs=[
                specs.all_queries(layout.q),
                specs.all_keys(layout.k),
                specs.all_keys(layout.v),
            ],
            scratch_shapes=[
                pltpu.VMEM((num_queries, layout.q.width), jnp.float32),
                pltpu.VMEM((num_keys, layout.k.width), jnp.float32),
                pltpu.VMEM((num_keys, layout.v.width), jnp.float32),
                pltpu.VMEM((cut.keys.size, LANES), jnp.int32) if has_segments else None,
            ],
        ),
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k, v)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary", "arbitrary"),
            vmem_limit_bytes=vmem_bytes,
        ),
        name="tpu_flash_attention_bwd",
        interpret=interpret,
    )(schedule.codes_BP, operands)
    return dq, dk, dv


def _kernel(
    codes: Any,
    refs: Operands,
    dq_ref: Any,
    dk_ref: Any,
    dv_ref: Any,
    dq: Any,
    dk: Any,
    dv: Any,
    k_segments: Any,
    *,
    block: BlockShape,
    group: int,
) -> None:
    b, g, p = pl.program_id(0), pl.program_id(2), pl.program_id(3)
    n = pl.program_id(1) * group + g
    code = code_of(codes, b, p)
    i, j = query_block(code), key_block(code)

    @pl.when(p == 0)
    def _start_queries() -> None:
        dq[...] = jnp.zeros_like(dq)

    @pl.when((p == 0) & (g == 0))
    def _start_keys() -> None:
        dk[...] = jnp.zeros_like(dk)
        dv[...] = jnp.zeros_like(dv)

    if k_segments is not None:

        @pl.when(has(code, FIRST))
        def _turn_segments() -> None:
            k_segments[...] = column(refs.k_segments[...])

    def visit(*, is_masked: bool) -> None:
        new = key_gradients(block, refs, k_segments, b=b, n=n, i=i, j=j, is_masked=is_masked)
        queries, keys = _rows(i, block.cut.queries.size), _rows(j, block.cut.keys.size)
        dk[keys] += new.dk
        dv[keys] += new.dv
        # Contracted over the rows of both: scores are keys by queries, and are not transposed for
        # this.
        dq[queries] += matmul(new.ds, new.k, (0, 0))

    when_active(code, visit)
    is_last = p == pl.num_programs(3) - 1

    @pl.when(is_last)
    def _finish_queries() -> None:
        dq_ref[...] = (dq[: dq_ref.shape[0]] * block.spec.scale).astype(dq_ref.dtype)

    @pl.when(is_last & (g == group - 1))
    def _finish_keys() -> None:
        dk_ref[...] = (dk[: dk_ref.shape[0]] * block.spec.scale).astype(dk_ref.dtype)
        dv_ref[...] = dv[: dv_ref.shape[0]].astype(dv_ref.dtype)


def _rows(block: Array, size: int) -> Any:
    # The compiler cannot see that a block's number times its size is a multiple of a tile's rows.
    return pl.ds(pl.multiple_of(block * size, size), size)
