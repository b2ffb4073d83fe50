"""The kernel for the gradients of keys and values, on the grid (batch row, key head, visit, query
head of the key head). They are summed over visits by key blocks and over the heads.

Letters: B batch, S keys, K key heads, H key width, V value width.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from axcore.ops import AttentionSpec
from axl_tpu.kernels.attention.block import BlockShape, column
from axl_tpu.kernels.attention.block_schedule import (
    FIRST,
    LANES,
    LAST,
    Blocking,
    BlockSchedule,
    has,
    key_block,
    query_block,
)
from axl_tpu.kernels.attention.gradients import key_gradients, when_active
from axl_tpu.kernels.attention.operands import BlockSpecs, Layout, Operands, code_of


def backward_keys(
    operands: Operands,
    layout: Layout,
    spec: AttentionSpec,
    cut: Blocking,
    schedule: BlockSchedule,
    *,
    interpret: Any,
) -> tuple[Array, Array]:
    """Return gradients in the inputs' dtype, their heads as in `layout`; visits go by keys."""
    k, v = operands.k, operands.v
    specs = BlockSpecs(operands, layout, cut, by_keys=True)
    size = cut.keys.size
    # Keys are down the rows of scores here, so their segments are a column, and what is per query
    # is in rows as it was stored.
    segments = None if operands.k_segments is None else pltpu.VMEM((size, LANES), jnp.int32)
    dk, dv = pl.pallas_call(
        partial(_kernel, block=BlockShape(spec, cut, by_keys=True), group=specs.group),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            # Heads of a group innermost: the block of keys and values stays while all of them go
            # by, and gradients of shared keys are summed in VMEM.
            grid=(k.shape[0], layout.k.num, schedule.num_steps, specs.group),
            in_specs=[specs.inputs()],
            out_specs=[specs.keys(layout.k), specs.keys(layout.v)],
            scratch_shapes=[
                pltpu.VMEM((size, layout.k.width), jnp.float32),
                pltpu.VMEM((size, layout.v.width), jnp.float32),
                segments,
            ],
        ),
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (k, v)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary", "arbitrary"),
            vmem_limit_bytes=specs.vmem_bytes(),
        ),
        name="tpu_flash_attention_dkv",
        interpret=interpret,
    )(schedule.codes_BP, operands)
    return dk, dv


def _kernel(
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
        new = key_gradients(block, refs, k_segments, b=b, n=n, i=i, j=j, is_masked=is_masked)
        dk[...] += new.dk
        dv[...] += new.dv

    when_active(code, visit)

    @pl.when(has(code, LAST) & (g == group - 1))
    def _finish() -> None:
        # The scale once here, and not on each block of gradients of logits.
        dk_ref[...] = (dk[...] * block.spec.scale).astype(dk_ref.dtype)
        dv_ref[...] = dv[...].astype(dv_ref.dtype)
