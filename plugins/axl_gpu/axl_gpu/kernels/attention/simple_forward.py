"""Flash attention forward, the simple form: one warp group, one block of keys after another.

It overlaps nothing, and is here to be read: `forward` does the same work with copies
under way while it multiplies.

Letters: B batch, T queries, S keys, N query heads, K key heads, I queries and J keys of a block,
H key width, V value width; Q blocks of queries.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from axl_gpu.kernels.attention.arrays import Arrays, Choices, launch, shape_like
from axl_gpu.kernels.attention.block import (
    Keys,
    Queries,
    Running,
    advance,
    along,
    finish,
    logits,
    masked_unless,
    start,
)
from axl_gpu.kernels.attention.matmuls import Matmuls, Ref


def simple_forward(
    arrays: Arrays, spans_BQ4: Array, sinks_N: Array, choices: Choices, products: Matmuls
) -> tuple[Array, Array]:
    """Return the output `[B, T, N, V]` and the log-sum-exp `[B, N, T]`, float32.

    Args:
        arrays: Of the call.
        spans_BQ4: Of each block of queries.
        sinks_N: Float32 logits without values; -inf where there are none.
        choices: Static.
        products: The instructions that multiply.
    """
    batch, num_queries, num_heads, _ = arrays.q_BTNH.shape
    value_width = arrays.v_BSKV.shape[3]
    outputs = (
        shape_like(arrays.q_BTNH, shape=(batch, num_queries, num_heads, value_width)),
        shape_like(sinks_N, shape=(batch, num_heads, num_queries)),
    )
    kernel = launch(
        partial(_body, choices=choices, products=products),
        outputs,
        name="flash_forward_simple",
        grid={"head": num_heads, "block": num_queries // choices.blocks.queries, "batch": batch},
        scratch=_scratch(arrays, choices),
        interpreter=products.interpreter,
    )
    o_BTNV, lse_BNT = kernel(arrays, spans_BQ4, sinks_N)
    return o_BTNV, lse_BNT


def _scratch(arrays: Arrays, choices: Choices) -> dict[str, Any]:
    queries, keys = choices.blocks.queries, choices.blocks.keys
    dtype, width, value_width = arrays.q_BTNH.dtype, arrays.q_BTNH.shape[3], arrays.v_BSKV.shape[3]
    has_segments = arrays.q_segments_BT is not None
    numbers = plgpu.SMEM((queries,), jnp.int32)
    return {
        "q": plgpu.SMEM((queries, width), dtype),
        "k": plgpu.SMEM((keys, width), dtype),
        "v": plgpu.SMEM((keys, value_width), dtype),
        "o": plgpu.SMEM((queries, value_width), dtype),
        "lse": plgpu.SMEM((queries,), jnp.float32),
        "seen": Queries(numbers, numbers, numbers if has_segments else None),
        "k_segments": plgpu.SMEM((keys,), jnp.int32) if has_segments else None,
        "arrived": plgpu.Barrier(),
    }


def _body(
    arrays: Arrays,
    spans_BQ4: Ref,
    sinks_N: Ref,
    o_BTNV: Ref,
    lse_BNT: Ref,
    *,
    choices: Choices,
    products: Matmuls,
    **scratch: Any,
) -> None:
    q, k, v, arrived = (scratch[name] for name in ("q", "k", "v", "arrived"))
    block_q, block_k = choices.blocks.queries, choices.blocks.keys
    batch, block, head = (lax.axis_index(name) for name in ("batch", "block", "head"))
    key_head = lax.div(head, arrays.q_BTNH.shape[2] // arrays.k_BSKH.shape[2])
    rows = pl.ds(block * block_q, block_q)

    def fetch(source: Ref, target: Ref) -> None:
        plgpu.copy_gmem_to_smem(source, target, arrived)
        plgpu.barrier_wait(arrived)

    fetch(arrays.q_BTNH.at[batch, rows, head], q)
    queries = scratch["seen"]
    fetch(arrays.low_BT.at[batch, rows], queries.low_I)
    fetch(arrays.high_BT.at[batch, rows], queries.high_I)
    if arrays.q_segments_BT is not None:
        fetch(arrays.q_segments_BT.at[batch, rows], queries.segments_I)
    begin, full_begin, full_end, end = (spans_BQ4[batch, block, i] for i in range(4))

    def step(j: Array, carry: tuple[Array, Running]) -> tuple[Array, Running]:
        weighted_IV, running = carry
        columns = pl.ds(j * block_k, block_k)
        fetch(arrays.k_BSKH.at[batch, columns, key_head], k)
        if arrays.k_segments_BS is not None:
            fetch(arrays.k_segments_BS.at[batch, columns], scratch["k_segments"])
        keys = Keys(j * block_k, scratch["k_segments"])
        found = logits(products.transposed(q, k), scale=choices.scale, soft_cap=choices.soft_cap)
        logits_IJ = masked_unless((j >= full_begin) & (j < full_end), found, queries, keys, axis=0)
        new = advance(running, logits_IJ)
        fetch(arrays.v_BSKV.at[batch, columns, key_head], v)
        shrunk_IV = weighted_IV * along(new.decay_I, weighted_IV.shape, 0)
        return products.added(shrunk_IV, new.exponentials_IJ.astype(v.dtype), v), new.running

    nothing_IV = jnp.zeros((block_q, v.shape[1]), jnp.float32)
    weighted_IV, running = lax.fori_loop(begin, end, step, (nothing_IV, start(block_q)))
    finished = finish(running, sinks_N[head])
    scratch["o"][...] = (weighted_IV * along(finished.factor_I, weighted_IV.shape, 0)).astype(
        q.dtype
    )
    scratch["lse"][...] = finished.lse_I
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(scratch["o"], o_BTNV.at[batch, rows, head])
    plgpu.copy_smem_to_gmem(scratch["lse"], lse_BNT.at[batch, head, rows])
    plgpu.wait_smem_to_gmem(0)
