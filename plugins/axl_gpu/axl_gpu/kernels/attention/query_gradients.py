"""Gradients of queries, the tuned form: one warp group fetches keys and values, two multiply.

A group computes exponentials while it multiplies `do v`. The arithmetic is that of `block`, in the
order of `simple_backward`.

Source: Dao 2023, arXiv:2307.08691; Shah et al. 2024, arXiv:2407.08608.

Letters: B batch, T queries, S keys, N query heads, K key heads, I queries and J keys of a block,
H key width, V value width; Q blocks of queries of a full thread block.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from axl_gpu.kernels.attention.arrays import Arrays, Choices, Residuals, launch, shape_like
from axl_gpu.kernels.attention.block import (
    Keys,
    Queries,
    logit_gradients,
    logits,
    masked_unless,
    probabilities,
    sloped,
)
from axl_gpu.kernels.attention.key_loop import KeyLoop
from axl_gpu.kernels.attention.matmuls import Matmuls, Ref
from axl_gpu.kernels.attention.ring_buffer import at, ring_barriers


def tuned_query_gradients(
    arrays: Arrays,
    residuals: Residuals,
    spans_BQ4: Array,
    choices: Choices,
    products: Matmuls,
) -> Array:
    """Return the gradient `[B, T, N, H]` of queries, in their dtype."""
    batch, num_queries, num_heads, _ = arrays.q_BTNH.shape
    blocks = choices.blocks
    num_blocks = num_queries // (blocks.queries * blocks.num_groups)
    kernel = launch(
        partial(_body, choices=choices, products=products),
        shape_like(arrays.q_BTNH),
        name="flash_query_gradients",
        grid={"head": num_heads, "block": num_blocks, "batch": batch},
        scratch=_scratch(arrays, choices),
        interpreter=products.interpreter,
        num_threads=blocks.num_groups + 1,
    )
    dq_BTNH: Array = kernel(arrays, residuals, spans_BQ4)
    return dq_BTNH


def _scratch(arrays: Arrays, choices: Choices) -> dict[str, Any]:
    blocks, dtype = choices.blocks, arrays.q_BTNH.dtype
    own, fetched = (blocks.num_groups, blocks.queries), (blocks.num_stages, blocks.keys)
    width, value_width = arrays.q_BTNH.shape[3], arrays.v_BSKV.shape[3]
    has_segments = arrays.q_segments_BT is not None
    ring = partial(ring_barriers, num_groups=blocks.num_groups, num_stages=blocks.num_stages)
    return {
        "q": plgpu.SMEM((*own, width), dtype),
        "do": plgpu.SMEM((*own, value_width), dtype),
        "low": plgpu.SMEM(own, jnp.int32),
        "high": plgpu.SMEM(own, jnp.int32),
        "lse": plgpu.SMEM(own, jnp.float32),
        "delta": plgpu.SMEM(own, jnp.float32),
        "q_segments": plgpu.SMEM(own, jnp.int32) if has_segments else None,
        "own_arrived": plgpu.Barrier(
            num_arrivals=7 if has_segments else 6, num_barriers=blocks.num_groups
        ),
        "k": plgpu.SMEM((*fetched, width), dtype),
        "v": plgpu.SMEM((*fetched, value_width), dtype),
        "k_segments": plgpu.SMEM(fetched, jnp.int32) if has_segments else None,
        "k_ring": ring(2 if has_segments else 1),
        "v_ring": ring(1),
    }


def _body(
    arrays: Arrays,
    residuals: Residuals,
    spans_BQ4: Ref,
    dq_BTNH: Ref,
    *,
    choices: Choices,
    products: Matmuls,
    **scratch: Any,
) -> None:
    blocks = choices.blocks
    walk = KeyLoop.of(arrays, spans_BQ4, blocks, scratch)
    batch, head, k_ring, v_ring = walk.batch, walk.head, walk.k_ring, walk.v_ring

    def consume(group: Array) -> None:
        rows = walk.rows(group)
        own = {name: at(scratch[name], group) for name in _OWN}
        _fetch_own(arrays, residuals, own, batch, rows, head)
        q, do = own["q"], own["do"]
        queries = Queries(own["low"], own["high"], own["q_segments"])

        def step(step: Array, dq_IH: Array) -> Array:
            slot = k_ring.slot(step)
            k, v = scratch["k"].at[slot], scratch["v"].at[slot]
            keys = Keys(walk.key_block(step) * blocks.keys, at(scratch["k_segments"], slot))

            def weigh(qk_IJ: Array) -> Array:
                found = logits(qk_IJ, scale=choices.scale, soft_cap=choices.soft_cap)
                logits_IJ = masked_unless(walk.sees_whole(step), found, queries, keys, axis=0)
                p_IJ = probabilities(logits_IJ, own["lse"][...], axis=0)
                weights_IJ = sloped(p_IJ, logits_IJ, choices.soft_cap)
                # Values of the next step, to keep exponentials before the wait for `do v`: see
                # `forward`.
                v_ring.wait_within(step + 1, walk.num_steps)
                return weights_IJ

            k_ring.wait(step)
            weights_IJ, dp_IJ = multiply(q, k, do, v, weigh)
            # Values are not needed for what follows; keys are, for `ds k`.
            v_ring.release(step)
            ds_IJ = logit_gradients(weights_IJ, dp_IJ, own["delta"][...], axis=0)
            dq_IH = products.added(dq_IH, ds_IJ.astype(k.dtype), k)
            k_ring.release(step)
            return dq_IH

        # A soft cap's slope takes the registers that a second product would.
        is_capped = choices.soft_cap is not None
        multiply = products.each_transposed if is_capped else products.both_transposed
        v_ring.wait_within(0, walk.num_steps)
        dq_IH = lax.fori_loop(0, walk.num_steps, step, jnp.zeros(q.shape, jnp.float32))
        # `q` is this group's own, and the last product that reads it is done.
        q[...] = (dq_IH * choices.scale).astype(q.dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(q, dq_BTNH.at[batch, rows, head])
        plgpu.wait_smem_to_gmem(0)

    walk.run(consume)


_OWN = ("q", "do", "low", "high", "lse", "delta", "q_segments", "own_arrived")
"""What each warp group has of its own, by name in the scratch memory."""


def _fetch_own(
    arrays: Arrays,
    residuals: Residuals,
    own: dict[str, Any],
    batch: Array,
    rows: Any,
    head: Array,
) -> None:
    """Copy what belongs to a warp group's queries to shared memory."""
    sources = {
        "q": arrays.q_BTNH.at[batch, rows, head],
        "do": residuals.do_BTNV.at[batch, rows, head],
        "lse": residuals.lse_BNT.at[batch, head, rows],
        "delta": residuals.delta_BNT.at[batch, head, rows],
        "low": arrays.low_BT.at[batch, rows],
        "high": arrays.high_BT.at[batch, rows],
    }
    if arrays.q_segments_BT is not None:
        sources["q_segments"] = arrays.q_segments_BT.at[batch, rows]
    for name, source in sources.items():
        plgpu.copy_gmem_to_smem(source, own[name], own["own_arrived"])
    plgpu.barrier_wait(own["own_arrived"])
