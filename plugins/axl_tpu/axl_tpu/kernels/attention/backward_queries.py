"""The kernel for the gradient of queries, on the grid (batch row, query head, visit).

It is summed over visits by query blocks. What is per query is in columns, made once a block.

Letters: B batch, T queries, N query heads, H key width.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from axcore.ops import AttentionSpec
from axl_tpu.kernels.attention.block import BlockShape, dropout, inside, matmul, visible
from axl_tpu.kernels.attention.block_schedule import (
    FIRST,
    LAST,
    Blocking,
    BlockSchedule,
    has,
    key_block,
    query_block,
)
from axl_tpu.kernels.attention.gradients import probabilities_and_ds, when_active
from axl_tpu.kernels.attention.operands import BlockSpecs, Columns, Layout, Operands, code_of


def backward_queries(
    operands: Operands,
    layout: Layout,
    spec: AttentionSpec,
    cut: Blocking,
    schedule: BlockSchedule,
    *,
    interpret: Any,
) -> Array:
    """Return the gradient, its heads as `layout.q`, in the inputs' dtype; visits go by queries."""
    specs = BlockSpecs(operands, layout, cut, by_keys=False)
    dq: Array = pl.pallas_call(
        partial(_dq_kernel, block=BlockShape(spec, cut, by_keys=False)),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(operands.q.shape[0], layout.q.num, schedule.num_steps),
            in_specs=[specs.inputs()],
            out_specs=specs.queries(layout.q),
            scratch_shapes=[
                pltpu.VMEM((cut.queries.size, layout.q.width), jnp.float32),
                Columns.scratch(operands, cut.queries.size),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(operands.q.shape, operands.q.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=specs.vmem_bytes(),
        ),
        name="tpu_flash_attention_dq",
        interpret=interpret,
    )(schedule.codes_BP, operands)
    return dq


def _dq_kernel(
    codes: Any, refs: Operands, dq_ref: Any, dq: Any, columns: Columns, *, block: BlockShape
) -> None:
    b, n = pl.program_id(0), pl.program_id(1)
    code = code_of(codes, b, pl.program_id(2))
    i, j = query_block(code), key_block(code)

    @pl.when(has(code, FIRST))
    def _start() -> None:
        dq[...] = jnp.zeros_like(dq)
        columns.fill(refs)

    def visit(*, is_masked: bool) -> None:
        q, k, v, do = refs.q[...], refs.k[...], refs.v[...], refs.do[...]
        if is_masked and block.cut.keys.is_padded:
            k, v = (inside(x, j * block.cut.keys.size, block.cut.keys.length) for x in (k, v))
        mask = None
        if is_masked:
            segments = None if refs.k_segments is None else refs.k_segments[...]
            offset = refs.offset_of(b, block.spec)
            mask = visible(block, i, j, offset=offset, queries=columns, k_segments=segments)
        factor = None if refs.seeds is None else dropout(block, i, j, refs.seeds[b, n])
        _, ds = probabilities_and_ds(
            block,
            matmul(q, k, (1, 1)),
            matmul(do, v, (1, 1)),
            mask=mask,
            factor=factor,
            lse=block.of_queries(columns.lse[...]),
            delta=block.of_queries(columns.delta[...]),
        )
        dq[...] += matmul(ds.astype(k.dtype), k, (1, 0))

    when_active(code, visit)

    @pl.when(has(code, LAST))
    def _finish() -> None:
        dq_ref[...] = (dq[...] * block.spec.scale).astype(dq_ref.dtype)
