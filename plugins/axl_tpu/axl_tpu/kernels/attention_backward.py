"""The backward kernels of flash attention on TPU: gradients of queries, and of keys and values.

Both compute the probabilities of a visit anew from the log-sum-exp. The gradient of queries is
summed over visits by query blocks, on the grid (batch row, query head, visit). Those of keys and
values are summed over visits by key blocks and over the query heads that share the key head, on the
grid (batch row, key head, visit, query head of it); their scores are keys by queries, so that
products need no transposed scores.

Letters: B batch, T queries, S keys, N query heads, K key heads, G query heads of a key head, H key
width, V value width, Q queries and J keys of a block.

Source: Dao et al. 2022, arXiv:2205.14135, appendix B.2.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from axcore.ops import AttentionSpec
from axl_tpu.kernels.attention_block import (
    HIDDEN,
    BlockShape,
    capped,
    column,
    dropout,
    inside,
    product,
    visible,
)
from axl_tpu.kernels.attention_operands import BlockSpecs, Columns, Operands, code_of
from axl_tpu.kernels.attention_visits import (
    FIRST,
    LANES,
    LAST,
    LIVE,
    MASKED,
    Cut,
    Visits,
    has,
    key_block,
    query_block,
)


def backward_queries(
    operands: Operands, spec: AttentionSpec, cut: Cut, visits: Visits, *, interpret: Any
) -> Array:
    """Returns `dq_BNTH` in the inputs' dtype; visits go by query blocks."""
    batch, num_heads, _, width = operands.q.shape
    specs = BlockSpecs(operands, cut, by_keys=False)
    dq_BNTH: Array = pl.pallas_call(
        partial(_dq_kernel, block=BlockShape(spec, cut, by_keys=False)),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(batch, num_heads, visits.num_steps),
            in_specs=[specs.inputs()],
            out_specs=specs.queries(width),
            scratch_shapes=[
                pltpu.VMEM((cut.queries.size, width), jnp.float32),
                Columns.scratch(operands, cut.queries.size),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(operands.q.shape, operands.q.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        name="tpu_flash_attention_dq",
        interpret=interpret,
    )(visits.codes_BP, operands)
    return dq_BNTH


def backward_keys(
    operands: Operands, spec: AttentionSpec, cut: Cut, visits: Visits, *, interpret: Any
) -> tuple[Array, Array]:
    """Returns `dk_BKSH` and `dv_BKSV` in the inputs' dtype; visits go by key blocks."""
    k, v = operands.k, operands.v
    batch, num_key_heads, _, width = k.shape
    specs = BlockSpecs(operands, cut, by_keys=True)
    size = cut.keys.size
    segments = None if operands.k_segments is None else pltpu.VMEM((size, LANES), jnp.int32)
    dk_BKSH, dv_BKSV = pl.pallas_call(
        partial(_dkv_kernel, block=BlockShape(spec, cut, by_keys=True), group=specs.group),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(batch, num_key_heads, visits.num_steps, specs.group),
            in_specs=[specs.inputs()],
            out_specs=[specs.keys(width), specs.keys(v.shape[-1])],
            scratch_shapes=[
                pltpu.VMEM((size, width), jnp.float32),
                pltpu.VMEM((size, v.shape[-1]), jnp.float32),
                segments,
            ],
        ),
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (k, v)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary", "arbitrary")
        ),
        name="tpu_flash_attention_dkv",
        interpret=interpret,
    )(visits.codes_BP, operands)
    return dk_BKSH, dv_BKSV


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
        _, ds = _probabilities_and_ds(
            block,
            product(q, k, (1, 1)),
            product(do, v, (1, 1)),
            mask=mask,
            factor=factor,
            lse=block.of_queries(columns.lse[...]),
            delta=block.of_queries(columns.delta[...]),
        )
        dq[...] += product(ds.astype(k.dtype), k, (1, 0))

    _when_live(code, visit)

    @pl.when(has(code, LAST))
    def _finish() -> None:
        dq_ref[...] = (dq[...] * block.spec.scale).astype(dq_ref.dtype)


def _dkv_kernel(
    codes: Any,
    refs: Operands,
    dk_ref: Any,
    dv_ref: Any,
    dk: Any,
    dv: Any,
    k_segments: Any,
    *,
    block: BlockShape,
    group: int,
) -> None:
    b, g = pl.program_id(0), pl.program_id(3)
    n = pl.program_id(1) * group + g
    code = code_of(codes, b, pl.program_id(2))
    i, j = query_block(code), key_block(code)

    @pl.when(has(code, FIRST) & (g == 0))
    def _start() -> None:
        dk[...] = jnp.zeros_like(dk)
        dv[...] = jnp.zeros_like(dv)
        if k_segments is not None:
            k_segments[...] = column(refs.k_segments[...])

    def visit(*, is_masked: bool) -> None:
        q, k, v, do = refs.q[...], refs.k[...], refs.v[...], refs.do[...]
        lse, delta = refs.lse[...], refs.delta[...]
        if is_masked and block.cut.queries.is_padded:
            first, length = i * block.cut.queries.size, block.cut.queries.length
            q, do = (inside(x, first, length) for x in (q, do))
            lse, delta = (inside(x, first, length, axis=1) for x in (lse, delta))
        mask = None
        if is_masked:
            segments = None if k_segments is None else k_segments[...]
            offset = refs.offset_of(b, block.spec)
            mask = visible(block, i, j, offset=offset, queries=refs, k_segments=segments)
        factor = None if refs.seeds is None else dropout(block, i, j, refs.seeds[b, n])
        kept, ds = _probabilities_and_ds(
            block,
            product(k, q, (1, 1)),
            product(v, do, (1, 1)),
            mask=mask,
            factor=factor,
            lse=lse,
            delta=delta,
        )
        dv[...] += product(kept.astype(do.dtype), do, (1, 0))
        dk[...] += product(ds.astype(q.dtype), q, (1, 0))

    _when_live(code, visit)

    @pl.when(has(code, LAST) & (g == group - 1))
    def _finish() -> None:
        dk_ref[...] = (dk[...] * block.spec.scale).astype(dk_ref.dtype)
        dv_ref[...] = dv[...].astype(dv_ref.dtype)


def _when_live(code: Array, visit: Any) -> None:
    """Computes a visit that shows anything, with a mask where it does not show all."""
    is_masked = has(code, MASKED)
    pl.when(has(code, LIVE) & is_masked)(partial(visit, is_masked=True))
    pl.when(has(code, LIVE) & ~is_masked)(partial(visit, is_masked=False))


def _probabilities_and_ds(
    block: BlockShape,
    scores: Array,
    dp: Array,
    *,
    mask: Array | None,
    factor: Array | None,
    lse: Array,
    delta: Array,
) -> tuple[Array, Array]:
    """Returns the probabilities that dropout kept, and the gradient of scaled scores; float32."""
    logits, tanh = capped(scores, block.spec)
    if mask is not None:
        logits = jnp.where(mask, logits, HIDDEN)
    p = jnp.exp2(logits - lse)
    kept = p
    if factor is not None:
        kept, dp = p * factor, dp * factor
    ds = p * (dp - delta)
    return kept, ds if tanh is None else ds * (1.0 - tanh * tanh)
