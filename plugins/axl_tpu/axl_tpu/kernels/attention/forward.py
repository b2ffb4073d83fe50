"""The forward kernel of flash attention on TPU: output and log-sum-exp, block by block.

The grid is (batch row, query head, visit); visits go by query blocks. Sums over the keys of a query
block are kept in VMEM; sums over lanes are put off to its last visit.

Letters: B batch, T queries, S keys, N query heads, K key heads, H key width, V value width, Q
queries and J keys of a block, P visits.

Source: Dao et al. 2022, arXiv:2205.14135; Milakov and Gimelshein 2018, arXiv:1805.02867.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from axcore.ops import AttentionSpec
from axl_tpu.kernels.attention.block import (
    HIDDEN,
    LN2,
    LOG2E,
    SEEN,
    BlockShape,
    capped,
    dropout,
    inside,
    matmul,
    spread,
    visible,
)
from axl_tpu.kernels.attention.block_schedule import (
    FIRST,
    LANES,
    LAST,
    LIVE,
    MASKED,
    Blocking,
    BlockSchedule,
    has,
    key_block,
    query_block,
)
from axl_tpu.kernels.attention.operands import BlockSpecs, Columns, Layout, Operands, code_of


def forward(
    operands: Operands,
    layout: Layout,
    spec: AttentionSpec,
    cut: Blocking,
    schedule: BlockSchedule,
    *,
    interpret: Any,
) -> tuple[Array, Array]:
    """Return the output in the inputs' dtype, its heads as `layout.o`, and float32 `lse_BN1T`.

    Args:
        operands: The call's arrays as kernels take them.
        layout: How their heads are laid out.
        spec: The call's static choices.
        cut: The blocks.
        schedule: By query blocks.
        interpret: Runs the kernel by an interpreter, on any device.
    """
    batch, num_heads, num_queries = operands.q.shape[0], layout.q.num, cut.queries.length
    block_q = cut.queries.size
    specs = BlockSpecs(operands, layout, cut, by_keys=False)
    grid_spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(batch, num_heads, schedule.num_steps),
        in_specs=[specs.inputs()],
        out_specs=[specs.queries(layout.o), specs.query_row()],
        scratch_shapes=[
            pltpu.VMEM((block_q, LANES), jnp.float32),
            pltpu.VMEM((block_q, LANES), jnp.float32),
            pltpu.VMEM((block_q, layout.v.width), jnp.float32),
            Columns.scratch(operands, block_q),
        ],
    )
    kernel = partial(_kernel, block=BlockShape(spec, cut, by_keys=False))
    o, lse_BN1T = pl.pallas_call(
        kernel,
        grid_spec=grid_spec,
        out_shape=[
            jax.ShapeDtypeStruct(layout.o.shape(batch, num_queries), operands.q.dtype),
            jax.ShapeDtypeStruct((batch, num_heads, 1, num_queries), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            # Visits are in order, as sums stay in VMEM from one to the next; rows and heads may
            # go to different cores.
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=specs.vmem_bytes(),
        ),
        name="tpu_flash_attention_fwd",
        interpret=interpret,
    )(schedule.codes_BP, operands)
    return o, lse_BN1T


def _kernel(
    codes: Any,
    refs: Operands,
    o_ref: Any,
    lse_ref: Any,
    maximum: Any,
    total: Any,
    weighted: Any,
    columns: Columns,
    *,
    block: BlockShape,
) -> None:
    b, n = pl.program_id(0), pl.program_id(1)
    code = code_of(codes, b, pl.program_id(2))
    i, j = query_block(code), key_block(code)

    @pl.when(has(code, FIRST))
    def _start() -> None:
        weighted[...] = jnp.zeros_like(weighted)
        # Once a query block and not at each visit: turning rows into columns is work for the
        # transpose unit.
        columns.fill(refs)
        if refs.sinks is None:
            maximum[...] = jnp.full_like(maximum, HIDDEN)
            total[...] = jnp.zeros_like(total)
        else:
            # A sink is a key without a value that was seen first. Its exponential is 1 in one
            # lane, as lanes are summed at the end.
            maximum[...] = jnp.full_like(maximum, jnp.maximum(refs.sinks[n] * LOG2E, HIDDEN))
            lane = jax.lax.broadcasted_iota(jnp.int32, total.shape, 1)
            total[...] = jnp.where(lane == 0, 1.0, 0.0)

    def visit(*, is_masked: bool) -> None:
        v = refs.v[...]
        logits, _ = capped(matmul(refs.q[...], refs.k[...], (1, 1)), block.spec)
        if is_masked:
            mask = visible(
                block,
                i,
                j,
                offset=refs.offset_of(b, block.spec),
                queries=columns,
                k_segments=None if refs.k_segments is None else refs.k_segments[...],
            )
            logits = logits if mask is None else jnp.where(mask, logits, HIDDEN)
            if block.cut.keys.is_padded:
                # A weight of 0 hides no NaN, and past the last key there is whatever was in VMEM.
                v = inside(v, j * block.cut.keys.size, block.cut.keys.length)
        old = maximum[...]
        new = jnp.maximum(old, jnp.max(logits, axis=1, keepdims=True))
        decay = jnp.exp2(old - new)
        p = jnp.exp2(logits - spread(new, logits.shape[1]))
        maximum[...] = new
        # Lane by lane. A sum over lanes at each visit would wait for the unit that moves data
        # between them; one at the end costs as much as one of these would.
        total[...] = total[...] * decay + _by_lane(p)
        # After the total: dropout drops weights, and not the denominator.
        if refs.seeds is not None:
            p = p * dropout(block, i, j, refs.seeds[b, n])
        weighted[...] = weighted[...] * spread(decay, weighted.shape[1]) + matmul(
            p.astype(v.dtype), v, (1, 0)
        )

    # Two bodies: most blocks are seen whole, and comparisons for the others cost vector time that
    # the products do not hide.
    is_masked = has(code, MASKED)
    pl.when(has(code, LIVE) & is_masked)(partial(visit, is_masked=True))
    pl.when(has(code, LIVE) & ~is_masked)(partial(visit, is_masked=False))

    @pl.when(has(code, LAST))
    def _finish() -> None:
        is_empty = maximum[...] <= SEEN
        whole = jnp.sum(total[...], axis=1, keepdims=True)
        whole = jnp.where(is_empty, 1.0, jnp.broadcast_to(whole, is_empty.shape))
        share = jnp.where(is_empty, 0.0, 1.0 / whole)
        o_ref[...] = (weighted[...] * spread(share, weighted.shape[1])).astype(o_ref.dtype)
        # From base 2 to base e, in which the op hands it on.
        lse = jnp.where(is_empty, -jnp.inf, (maximum[...] + jnp.log2(whole)) * LN2)
        # A row `[1, Q]` fills lanes in memory; as a column each number would take a register's
        # width.
        lse_ref[...] = lse.T[:1]


def _by_lane(p: Array) -> Array:
    """Return `[Q, LANES]`: sums of the columns that share a lane."""
    sums = p[:, :LANES]
    for start in range(LANES, p.shape[1], LANES):
        sums = sums + p[:, start : start + LANES]
    return sums
