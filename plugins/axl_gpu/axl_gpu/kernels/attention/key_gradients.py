"""Gradients of keys and values, the tuned form: one warp group fetches queries, two multiply.

A thread block goes through the queries of all heads that share its keys, so sums over them stay in
registers. The arithmetic is that of `attention_block`, in the order of `attention_simple_backward`.

Source: Dao 2023, arXiv:2307.08691; Shah et al. 2024, arXiv:2407.08608.

Letters: B batch, T queries, S keys, N query heads, K key heads, I queries and J keys of a block,
H key width, V value width; L blocks of keys of a whole thread block.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from axl_gpu.kernels.attention.arrays import Arrays, Choices, Residuals, launch, shape_like
from axl_gpu.kernels.attention.block import (
    Keys,
    logit_gradients,
    logits,
    masked_unless,
    probabilities,
    sloped,
)
from axl_gpu.kernels.attention.matmuls import Matmuls, Ref
from axl_gpu.kernels.attention.query_loop import QueryLoop, query_scratch
from axl_gpu.kernels.attention.ring_buffer import at


def tuned_key_gradients(
    arrays: Arrays,
    residuals: Residuals,
    spans_BL4: Array,
    choices: Choices,
    products: Matmuls,
) -> tuple[Array, Array]:
    """Returns the gradients `[B, S, K, H]` and `[B, S, K, V]` of keys and values, in their dtype.

    Sums over query heads are in float32, in registers. Where those of both do not fit, there is a
    kernel for each.
    """
    like = Gradients(arrays.k_BSKH, arrays.v_BSKV)
    if like.keys.shape[3] + like.values.shape[3] <= MAX_WIDTH_OF_BOTH:
        both = _launched(arrays, residuals, spans_BL4, choices, products, like)
        return both.keys, both.values
    keys = _launched(arrays, residuals, spans_BL4, choices, products, Gradients(like.keys, None))
    values = _launched(
        arrays, residuals, spans_BL4, choices, products, Gradients(None, like.values)
    )
    return keys.keys, values.values


MAX_WIDTH_OF_BOTH = 256
"""Of a head's keys and values together, whose sums fit the registers of one warp group."""


class Gradients(NamedTuple):
    """Gradients of keys and values, or references or sums of them; None for one not computed."""

    keys: Any
    values: Any


def _launched(
    arrays: Arrays,
    residuals: Residuals,
    spans_BL4: Array,
    choices: Choices,
    products: Matmuls,
    like: Gradients,
) -> Gradients:
    """Returns those gradients that `like` has arrays for."""
    batch, num_keys, num_key_heads, _ = arrays.k_BSKH.shape
    blocks = choices.blocks
    num_blocks = num_keys // (blocks.keys * blocks.num_groups)
    wanted = [name for name, array in like._asdict().items() if array is not None]
    kernel = launch(
        partial(_body, wanted=wanted, choices=choices, products=products),
        tuple(shape_like(getattr(like, name)) for name in wanted),
        name="flash_key_gradients",
        grid={"head": num_key_heads, "block": num_blocks, "batch": batch},
        scratch=_scratch(arrays, choices),
        interpreter=products.interpreter,
        num_threads=blocks.num_groups + 1,
    )
    outputs = kernel(arrays, residuals, spans_BL4)
    return Gradients(None, None)._replace(**dict(zip(wanted, outputs, strict=True)))


def _scratch(arrays: Arrays, choices: Choices) -> dict[str, Any]:
    blocks, dtype = choices.blocks, arrays.q_BTNH.dtype
    own = (blocks.num_groups, blocks.keys)
    has_segments = arrays.q_segments_BT is not None
    return {
        "k": plgpu.SMEM((*own, arrays.q_BTNH.shape[3]), dtype),
        "v": plgpu.SMEM((*own, arrays.v_BSKV.shape[3]), dtype),
        "k_segments": plgpu.SMEM(own, jnp.int32) if has_segments else None,
        "own_arrived": plgpu.Barrier(
            num_arrivals=3 if has_segments else 2, num_barriers=blocks.num_groups
        ),
        **query_scratch(arrays, blocks),
    }


def _body(
    arrays: Arrays,
    residuals: Residuals,
    spans_BL4: Ref,
    *outputs: Ref,
    wanted: Sequence[str],
    choices: Choices,
    products: Matmuls,
    **scratch: Any,
) -> None:
    blocks = choices.blocks
    loop = QueryLoop.of(arrays, residuals, spans_BL4, blocks, scratch)
    batch, key_head = loop.batch, loop.key_head

    def consume(group: Array) -> None:
        first = (loop.block * blocks.num_groups + group) * blocks.keys
        columns = pl.ds(first, blocks.keys)
        k, v, segments, arrived = (
            at(scratch[name], group) for name in ("k", "v", "k_segments", "own_arrived")
        )
        plgpu.copy_gmem_to_smem(arrays.k_BSKH.at[batch, columns, key_head], k, arrived)
        plgpu.copy_gmem_to_smem(arrays.v_BSKV.at[batch, columns, key_head], v, arrived)
        if arrays.k_segments_BS is not None:
            plgpu.copy_gmem_to_smem(arrays.k_segments_BS.at[batch, columns], segments, arrived)
        plgpu.barrier_wait(arrived)
        keys = Keys(first, segments)

        def step(step: Array, sums: Gradients) -> Gradients:
            dk_JH, dv_JV = sums
            q, lse, queries, do, delta = loop.slot(step)
            loop.q_ring.wait(step)
            found = logits(
                products.transposed(k, q), scale=choices.scale, soft_cap=choices.soft_cap
            )
            logits_JI = masked_unless(loop.see_whole(step), found, queries, keys, axis=1)
            p_JI = probabilities(logits_JI, lse[...], axis=1)
            weights_JI = sloped(p_JI, logits_JI, choices.soft_cap)
            weights_JI = weights_JI.astype(do.dtype)  # rounded, they take half the registers
            loop.do_ring.wait(step)
            if dv_JV is not None:
                dv_JV = products.added(dv_JV, p_JI.astype(do.dtype), do)
            if dk_JH is not None:
                dp_JI = products.transposed(v, do)
                weights_JI = weights_JI.astype(jnp.float32)
                ds_JI = logit_gradients(weights_JI, dp_JI, delta[...], axis=1)
                dk_JH = products.added(dk_JH, ds_JI.astype(q.dtype), q)
            loop.do_ring.release(step)
            loop.q_ring.release(step)
            return Gradients(dk_JH, dv_JV)

        shared = {"keys": k, "values": v}
        nothing = {name: jnp.zeros(shared[name].shape, jnp.float32) for name in wanted}
        sums = lax.fori_loop(0, loop.num_steps, step, Gradients(None, None)._replace(**nothing))
        factor = {"keys": choices.scale, "values": 1.0}
        for name in wanted:
            shared[name][...] = (getattr(sums, name) * factor[name]).astype(k.dtype)
        plgpu.commit_smem()
        for name, output in zip(wanted, outputs, strict=True):
            plgpu.copy_smem_to_gmem(shared[name], output.at[batch, columns, key_head])
        plgpu.wait_smem_to_gmem(0)

    loop.run(consume)
